"""HTTP: uvicorn behind bounds of ours, over TCP and TLS."""
