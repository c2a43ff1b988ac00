"""Identity of this program, as `waypost artefact sign` gets it, and the keys of its maker."""

NAME = "pump"
VERSION = "1.0.0"
SEQUENCE = 1  # rises with every version
BOARD = "pico-w"
# Public keys of the maker in PEM, one behind the other (`waypost artefact keygen --algorithm es256`).
# Without a key no image is accepted.
MAKER_KEYS = """
"""
