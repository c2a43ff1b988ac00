"""Operation of the bridge: `waypost bridge` and the routes it calls on a gateway."""
