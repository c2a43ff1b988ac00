"""`waypost explain`: problems and reason codes with their next steps."""
