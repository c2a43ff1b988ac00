"""`waypost edge trace`: packets and frames of a running gateway, live."""
