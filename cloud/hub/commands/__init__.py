"""Commands to devices, at the hub: kept, sent down, and what became of each."""
