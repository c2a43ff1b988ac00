"""Moves a gateway to another card or machine: identity, configuration and backlog, in one file."""
