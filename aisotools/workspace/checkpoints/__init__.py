"""Content-addressed snapshots of a workspace: store, scan, restore, and the timeline of undo and redo."""
