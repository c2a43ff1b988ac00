"""Which commands there are and where; nothing is imported before it is used."""

from __future__ import annotations

from typing import Final, NamedTuple


class CommandEntry(NamedTuple):
    """Where a command is: ``module:attribute``, the line `--help` shows, and the extra its packages come with."""

    place: str
    help: str
    extra: str


COMMANDS: Final[dict[str, CommandEntry]] = {
    "edge": CommandEntry("edge.appliance.cli:edge", "Run a gateway.", "edge"),
    "hub": CommandEntry("cloud.hub.cli:hub", "Run the cloud side of gateways.", "cloud"),
    "fleet": CommandEntry("cloud.fleet.cli:fleet", "Let gateways in at a hub, and shut them out.", "cloud"),
    "apply": CommandEntry("edge.appliance.resource_commands:apply", "Apply resources from YAML to a gateway.", "edge"),
    "get": CommandEntry("edge.appliance.resource_commands:get", "List applied resources.", "edge"),
    "describe": CommandEntry("edge.appliance.resource_commands:describe", "Show one resource in full.", "edge"),
    "diff": CommandEntry("edge.appliance.resource_commands:diff", "Show what `apply` would change.", "edge"),
    "delete": CommandEntry("edge.appliance.resource_commands:delete", "Delete resources.", "edge"),
    "schema": CommandEntry(
        "edge.appliance.resource_commands:schema", "Print the resources' JSON schema, for editors.", "edge"
    ),
    "device": CommandEntry(
        "edge.appliance.accounts.cli:device", "Who may connect to a gateway; devices to try.", "edge"
    ),
    "store": CommandEntry(
        "edge.appliance.store.cli:store", "Look into a gateway's store, verify, export, mend it.", "edge"
    ),
    "doctor": CommandEntry(
        "edge.appliance.doctor.cli:doctor", "Find what is wrong with a gateway, and the next step.", "edge"
    ),
    "bridge": CommandEntry(
        "edge.appliance.crossing.cli:bridge", "Watch and steer the bridge to a hub; prove a lake.", "edge"
    ),
    "analytics": CommandEntry("spark.cli:analytics", "Turn a lake into tables and reports (PySpark).", "spark"),
    "flash": CommandEntry("images.flashing.cli:flash", "Write an image onto cards, and read it back.", "images"),
    "balena": CommandEntry("images.balena.cli:balena", "Run gateways as a fleet of balena.", "images"),
    "image": CommandEntry("images.cli:image", "Make gateways to install: a folder, a package, an image.", "images"),
}

BRIDGE_PROVE: Final = CommandEntry(
    "cloud.proof.cli:prove", "Prove that a lake has what its gateways accepted.", "cloud"
)
"""`waypost bridge prove`: of the hub's packages, and loaded when it is used."""

FROM_A_CHECKOUT: Final = ("demo", "test", "bench", "docs", "lock")
"""What the launcher of a checkout runs itself."""
