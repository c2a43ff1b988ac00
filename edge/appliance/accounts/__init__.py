"""Users of a gateway: credentials and rights."""
