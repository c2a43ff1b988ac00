"""Creation of a gateway: `waypost init`."""
