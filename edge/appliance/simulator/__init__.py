"""Devices simulated on this machine: what `waypost device simulate` runs."""
