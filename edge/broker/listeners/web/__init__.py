"""HTTP server: uvicorn with limits of our own, over TCP and TLS."""
