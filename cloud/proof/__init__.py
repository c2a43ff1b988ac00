"""The proof that a lake is complete: what gateways stated they accepted, held against what is there."""
