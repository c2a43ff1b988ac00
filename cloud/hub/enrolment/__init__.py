"""How gateways come to their certificates: the hub's authority, and who gets a certificate of it."""
