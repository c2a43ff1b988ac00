"""Shared types of the broker: addresses, filters, rights, position ranges, the clock, and the interfaces between router
and sessions. The package is pure. It imports only the limits from the rest of the broker."""
