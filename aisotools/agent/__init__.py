"""The model loop over a session: the loop itself, models, and transcripts."""
