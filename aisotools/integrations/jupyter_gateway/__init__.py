"""A sandbox whose kernel runs at a Jupyter Server or Enterprise Gateway."""
