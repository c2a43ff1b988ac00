"""Identity of this program, as `waypost artefact sign` gets it, and the keys of its maker."""

NAME = "pump"
VERSION = "1.0.0"
SEQUENCE = 1
"""Rises with every version."""
BOARD = "python"
MAKER_KEYS = """
"""
"""Public keys of the maker in PEM, one behind the other. Without a key no image is accepted."""
