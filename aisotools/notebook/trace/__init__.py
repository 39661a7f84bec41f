"""A run or a session as it happens, and as a static page."""
