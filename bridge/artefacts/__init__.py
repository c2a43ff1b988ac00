"""Signed artefacts for devices: manifest, envelope, and the one verification that hub and gateway share."""
