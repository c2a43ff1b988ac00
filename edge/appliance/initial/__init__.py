"""A first gateway: `waypost edge init`."""
