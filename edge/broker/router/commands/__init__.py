"""Commands of hubs at a gateway: a stored queue for each device, receipts, and the devices' responses."""
