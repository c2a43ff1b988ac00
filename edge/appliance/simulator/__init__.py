"""Simulated devices: `waypost device simulate`."""
