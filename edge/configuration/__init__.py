"""A gateway's configuration: its kinds of resources, the files that keep them, following them, and trials.

The hub checks with the kinds what it sends to gateways; the rest is the gateway's own (README.md).
"""
