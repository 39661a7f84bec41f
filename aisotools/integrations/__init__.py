"""Other frameworks, MCP, and remote Jupyter kernels, each behind its extra."""
