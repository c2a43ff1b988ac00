"""What the whole broker speaks of: addresses, filters, rights, position ranges, the clock, and the interfaces between
router and sessions. Pure; it imports nothing of the broker but its limits."""
