"""Enrolment: the hub's certificate authority, and the certificates of gateways."""
