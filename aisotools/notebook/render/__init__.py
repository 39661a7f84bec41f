"""Results, made safe to show."""
