"""Consoles in a real browser: Debian's Chromium, driven as people do."""
