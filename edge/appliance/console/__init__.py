"""The gateway's console: one page, a small JSON API, health and metrics. It shows what it is told and owns nothing."""
