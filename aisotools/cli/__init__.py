"""The `aisotools` command."""
