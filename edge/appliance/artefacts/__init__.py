"""Artefacts at a gateway: fetched from its hub, verified, kept on the card, and served to its devices."""
