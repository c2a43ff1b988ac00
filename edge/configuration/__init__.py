"""Configuration of a gateway: its kinds of resources, their files, live changes, and trials of the hub's versions.

The hub imports only the kinds, to check what it sends to gateways (README.md).
"""
