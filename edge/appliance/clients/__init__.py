"""Clients of a running gateway: who is connected, silent or refused, and why; closing a connection."""
