"""A deterministic simulation of the whole crossing: gateway, link, hub, lake and clients on one thread (README.md)."""
