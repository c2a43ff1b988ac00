"""Choice of the address space of each connection."""
