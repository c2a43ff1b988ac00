"""Creation of a gateway: `waypost edge init`."""
