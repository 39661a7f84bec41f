"""A confined worker process. Knows nothing of sessions."""
