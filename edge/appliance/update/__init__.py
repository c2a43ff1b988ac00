"""Updates of a gateway from a card: a signed bundle goes into the slot that does not run, and is kept when it is well.

RAUC verifies and writes; U-Boot counts starts; what is decided here is whether the new system is kept.
"""
