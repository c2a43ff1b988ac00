"""Packet trace: what connections send and get, and what becomes of it."""
