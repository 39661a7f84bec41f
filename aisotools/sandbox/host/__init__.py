"""The host's side of a worker: connection, calls, scheduling, limits, snapshots of variables."""
