"""`waypost fleet`: commands for the operator of a hub, on its data directory, also while the hub runs."""
