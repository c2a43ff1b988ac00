"""Who a client is: credentials, bearer tokens, SASL mechanisms, and the limits on guessing. Rights are in the model."""
