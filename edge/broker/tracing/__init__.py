"""Packet trace: packets of connections in both directions, and the outcomes of their messages."""
