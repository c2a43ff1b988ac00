"""Alerts of the hub: rules, their evaluation, and notifications."""
