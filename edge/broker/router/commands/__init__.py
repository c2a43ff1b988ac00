"""Commands of hubs at a gateway: a stored queue for each device, what became of each, and the devices' responses."""
