"""Authentication: credentials, bearer tokens, SASL mechanisms and limits on guessing. `model` has the rights."""
