"""`waypost gateway`, `token`, `config`, `rollout` and `command`: the fleet of a hub, also while the hub runs."""
