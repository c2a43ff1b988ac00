"""Direct messages over a network of routers."""
