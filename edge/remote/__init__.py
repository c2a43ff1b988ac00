"""Consoles of gateways and hubs from the command line: contexts, sessions, and one HTTP client for all commands."""
