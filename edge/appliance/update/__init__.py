"""Updates of a gateway from a card: a signed bundle is written to the inactive slot, and kept if it proves healthy.

RAUC verifies and writes, U-Boot counts starts. This package decides whether the new system is kept.
"""
