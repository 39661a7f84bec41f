"""Models: scripted, replayed, a person, a small local one, and providers."""
