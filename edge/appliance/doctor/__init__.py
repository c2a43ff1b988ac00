"""`waypost doctor`: checks of a machine and a gateway, each with the next step."""
