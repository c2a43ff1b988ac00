"""Router: routes, subscriptions, retained messages, ordered answers, and uplinks."""
