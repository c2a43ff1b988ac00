"""Console of the gateway: one page, a small JSON API, health and metrics. It reads the status and keeps no state."""
