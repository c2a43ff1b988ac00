"""The addresses a hub listens at, and a gateway attaches its senders to."""

from typing import Final

TELEMETRY: Final = "telemetry"
STATUS: Final = "status"
LEDGER: Final = "ledger"
MANIFESTS: Final = "manifests"
