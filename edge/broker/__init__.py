"""The broker (see the README here)."""

import bridge.native  # noqa: F401 - modules below may be in the library
