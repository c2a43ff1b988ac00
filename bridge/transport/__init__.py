"""Under every protocol: the contract of a connection, the asyncio shell that drives it, WebSocket."""

import bridge.native  # noqa: F401 - modules below may be in the library
