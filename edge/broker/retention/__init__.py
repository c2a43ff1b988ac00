"""Retention: quotas, summaries of old readings, and reports of losses to a peer."""
