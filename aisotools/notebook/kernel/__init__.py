"""A Jupyter kernel whose cells run in a sandbox, and clients that attach to a live session."""
