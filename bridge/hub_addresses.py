"""The addresses a hub listens at, and a gateway attaches its links to."""

from typing import Final

TELEMETRY: Final = "telemetry"
STATUS: Final = "status"
LEDGER: Final = "ledger"
MANIFESTS: Final = "manifests"
COMMANDS: Final = "commands"
"""The one a gateway receives from (`bridge.downlink`)."""
DESIRED: Final = "configuration"
"""Both ways: a gateway receives from it how it is to be configured, and says there how it is (`bridge.desired`)."""
PROBE_SUFFIX: Final = "-doctor"
"""Behind a gateway's name the container-id of who only looks whether the hub lets that gateway in."""
