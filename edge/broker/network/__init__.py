"""State of a network of routers: links between them, and the addresses with consumers at each. No socket, no clock."""
