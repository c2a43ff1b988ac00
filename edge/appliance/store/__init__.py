"""`waypost store`: the tools for a gateway's store. What belongs to the store itself is in `edge.broker.store`."""
