"""The Model Context Protocol, as a client and as a server."""
