"""Eclipse Hono's device API on a space: what README.md beside this says is supported."""
