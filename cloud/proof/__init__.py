"""Proof that a lake is complete: the gateways' statements about accepted messages, compared with the lake."""
