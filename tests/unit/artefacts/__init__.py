"""Artefacts at a gateway."""
