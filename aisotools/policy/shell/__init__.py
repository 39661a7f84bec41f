"""Classify shell commands without running them."""
