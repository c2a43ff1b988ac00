"""Simulated devices: `waypost simulate`."""
