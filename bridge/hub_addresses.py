"""Addresses of a hub that a gateway attaches its links to."""

from typing import Final

TELEMETRY: Final = "telemetry"
STATUS: Final = "status"
LEDGER: Final = "ledger"
MANIFESTS: Final = "manifests"
COMMANDS: Final = "commands"
"""A gateway receives commands from it (`bridge.downlink`)."""
DESIRED: Final = "configuration"
"""Both ways: a gateway receives its desired configuration, and sends its reports (`bridge.desired`)."""
PROBE_SUFFIX: Final = "-doctor"
"""Suffix of the container-id of a probe, after the gateway's name: it only tests that the hub admits the gateway."""
INSTANCE: Final = "waypost-instance"
"""Property of a gateway's open: a random name of its process. Two machines with one identity differ in it."""
IDENTITY_SHARED: Final = "waypost:identity-shared"
"""Condition of a hub's close: two machines use the identity of this gateway and displace each other."""
