"""Addresses of a running gateway: figures, pages of a table, and what becomes of a message to an address."""
