"""Environment of a checkout: installed at the first start of a command, checked at every later one.

This package runs before anything is installed, so it uses the standard library alone and imports nothing of Waypost.
"""
