"""`waypost fleet`: commands of who runs a hub, on its data directory, also while the hub runs."""
