"""`waypost client trace`: packets and frames of a running gateway, live."""
