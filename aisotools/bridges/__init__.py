"""Doors to other frameworks: each module is thin, and imports its framework when it is imported itself."""
