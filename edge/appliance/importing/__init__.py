"""Configurations of other brokers as resources of a gateway."""
