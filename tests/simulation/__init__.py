"""Deterministic simulation of the whole path: gateway, link, hub, lake and clients on one thread (README.md)."""
