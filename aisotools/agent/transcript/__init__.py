"""A run as a notebook, and back."""
