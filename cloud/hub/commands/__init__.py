"""Commands to devices: storing, sending and outcomes."""
