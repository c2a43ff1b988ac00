"""Modules of MicroPython on a computer: the program for boards imports them as `machine` and `network`."""
