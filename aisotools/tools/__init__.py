"""What a tool is: from a function to its schema, the registry, and the formats of model providers."""
