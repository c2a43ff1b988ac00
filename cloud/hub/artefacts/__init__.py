"""Artefacts at a hub: stored images, trusted keys, and their HTTP interface."""
