"""Asking a person in the running cell."""
