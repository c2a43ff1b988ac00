"""Containers of a gateway, a hub and the analytics: build folders for balena and Docker, and OCI images."""
