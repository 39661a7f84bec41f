"""Models that answer a conversation: providers, scripts, records, a small one in process."""
