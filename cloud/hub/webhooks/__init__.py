"""Webhooks: events of the fleet, sent to URLs that users have given."""
