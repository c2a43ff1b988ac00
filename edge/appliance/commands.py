"""Table of the commands; each is imported when it is used."""

from __future__ import annotations

from typing import Final, NamedTuple


class CommandEntry(NamedTuple):
    """Location of a command (``module:attribute``), its line in `--help`, and the extra that has its packages."""

    place: str
    help: str
    extra: str


COMMANDS: Final[dict[str, CommandEntry]] = {
    "edge": CommandEntry("edge.appliance.cli:edge", "Run a gateway.", "edge"),
    "hub": CommandEntry("cloud.hub.cli:hub", "Run the cloud side of gateways.", "cloud"),
    "fleet": CommandEntry("cloud.fleet.cli:fleet", "Enrol and revoke gateways at a hub.", "cloud"),
    "apply": CommandEntry("edge.appliance.resource_commands:apply", "Apply resources from YAML to a gateway.", "edge"),
    "get": CommandEntry("edge.appliance.resource_commands:get", "List applied resources.", "edge"),
    "describe": CommandEntry("edge.appliance.resource_commands:describe", "Show one resource in full.", "edge"),
    "diff": CommandEntry("edge.appliance.resource_commands:diff", "Show what `apply` would change.", "edge"),
    "delete": CommandEntry("edge.appliance.resource_commands:delete", "Delete resources.", "edge"),
    "schema": CommandEntry(
        "edge.appliance.resource_commands:schema", "Print the resources' JSON schema, for editors.", "edge"
    ),
    "device": CommandEntry(
        "edge.appliance.accounts.cli:device", "Manage devices of a gateway, and simulate them.", "edge"
    ),
    "store": CommandEntry(
        "edge.appliance.store.cli:store", "Inspect, verify, export or repair a gateway's store.", "edge"
    ),
    "doctor": CommandEntry(
        "edge.appliance.doctor.cli:doctor", "Find what is wrong with a gateway, and the next step.", "edge"
    ),
    "bridge": CommandEntry(
        "edge.appliance.crossing.cli:bridge", "Monitor and control the bridge to a hub; prove a lake.", "edge"
    ),
    "analytics": CommandEntry("spark.cli:analytics", "Turn a lake into tables and reports (PySpark).", "spark"),
    "flash": CommandEntry("images.flashing.cli:flash", "Write an image onto cards and verify it.", "images"),
    "balena": CommandEntry("images.balena.cli:balena", "Run gateways as a balena fleet.", "images"),
    "image": CommandEntry("images.cli:image", "Build gateways to install: a folder, a package, an image.", "images"),
}

BRIDGE_PROVE: Final = CommandEntry(
    "cloud.proof.cli:prove", "Prove that a lake has what its gateways accepted.", "cloud"
)
"""`waypost bridge prove`: needs the hub's packages, and is loaded when it is used."""

FROM_A_CHECKOUT: Final = ("demo", "test", "bench", "docs", "lock")
"""Commands that the launcher of a checkout runs itself."""
