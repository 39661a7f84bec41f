"""The cards: widgets that ask, and what they leave behind."""
