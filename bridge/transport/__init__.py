"""Under every protocol: the contract of a connection, the asyncio shell that drives it, WebSocket."""
