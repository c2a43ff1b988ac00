"""An image onto cards: which disks may be written, sparse writing, reading back, labels."""
