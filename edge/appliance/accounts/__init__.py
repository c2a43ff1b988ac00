"""The users of a gateway: who may connect, and what they may do."""
