"""The magics, and what rewrites and completes them."""
