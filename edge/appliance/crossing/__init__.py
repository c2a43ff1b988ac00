"""Operating the bridge: what `waypost bridge` asks of a gateway."""
