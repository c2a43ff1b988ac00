"""Eclipse Hono's device API for a space. The README lists what is supported."""
