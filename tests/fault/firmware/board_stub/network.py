"""Module `network` of MicroPython on a computer, which has a network."""
