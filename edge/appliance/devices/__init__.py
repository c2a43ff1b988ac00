"""Devices of one gateway, and the settings to paste into them."""
