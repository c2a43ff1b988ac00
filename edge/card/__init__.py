"""What a technician tells a gateway before its first start: one file on its card, written on a laptop, read there."""
