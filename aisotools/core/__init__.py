"""Values, events, protocols and errors: imports nothing else of this package."""
