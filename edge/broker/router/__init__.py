"""Who receives what: routes, subscriptions, retained messages, answers in order, and the uplinks of a space."""
