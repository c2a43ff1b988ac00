"""`./waypost hub cluster-demo`: hubs as replicas on one machine, with what they share."""
