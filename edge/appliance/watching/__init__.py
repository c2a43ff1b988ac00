"""Live views of a running gateway on the terminal: `waypost top`, `waypost watch`, `waypost events`."""
