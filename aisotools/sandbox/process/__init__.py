"""Starting, supervising and ending the processes of a sandbox."""
