"""Devices made of this machine: what `waypost device simulate` runs."""
