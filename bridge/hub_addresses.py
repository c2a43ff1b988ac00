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
INSTANCE: Final = "waypost-instance"
"""Property of a gateway's open: a random name of this run of it. Two machines with one identity differ in it."""
IDENTITY_SHARED: Final = "waypost:identity-shared"
"""Condition of a hub's close: two machines use the identity of this gateway, and displace each other."""
