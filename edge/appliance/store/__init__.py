"""`waypost store`: tools for a gateway's store. The store itself is `edge.broker.store`."""
