"""The notebook: approval in the cell, rendering, magics."""
