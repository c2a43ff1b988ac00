"""Campaigns: versions of artefacts for devices behind gateways, in waves."""
