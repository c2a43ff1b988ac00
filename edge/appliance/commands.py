"""Table of the commands; each is imported when it is used."""

from __future__ import annotations

from typing import Final, NamedTuple


class LazyCommand(NamedTuple):
    """Location of a command (``module:attribute``), its line in `--help`, and the extra that has its packages."""

    place: str
    help: str
    extra: str


COMMANDS: Final[dict[str, LazyCommand]] = {
    "edge": LazyCommand("edge.appliance.cli:edge", "Run a gateway.", "edge"),
    "hub": LazyCommand("cloud.hub.cli:hub", "Run the cloud side of gateways.", "cloud"),
    "fleet": LazyCommand("cloud.fleet.cli:fleet", "Enrol and revoke gateways at a hub.", "cloud"),
    "apply": LazyCommand("edge.appliance.resource_commands:apply", "Apply resources from YAML to a gateway.", "edge"),
    "get": LazyCommand("edge.appliance.resource_commands:get", "List applied resources.", "edge"),
    "describe": LazyCommand("edge.appliance.resource_commands:describe", "Show one resource in full.", "edge"),
    "diff": LazyCommand("edge.appliance.resource_commands:diff", "Show what `apply` would change.", "edge"),
    "delete": LazyCommand("edge.appliance.resource_commands:delete", "Delete resources.", "edge"),
    "schema": LazyCommand(
        "edge.appliance.resource_commands:schema", "Print the resources' JSON schema, for editors.", "edge"
    ),
    "device": LazyCommand(
        "edge.appliance.accounts.cli:device", "Manage devices of a gateway, and simulate them.", "edge"
    ),
    "client": LazyCommand(
        "edge.appliance.clients.cli:client", "List clients and refusals, and disconnect clients.", "edge"
    ),
    "store": LazyCommand(
        "edge.appliance.store.cli:store", "Inspect, verify, export or repair a gateway's store.", "edge"
    ),
    "doctor": LazyCommand(
        "edge.appliance.doctor.cli:doctor", "Find what is wrong with a gateway, and the next step.", "edge"
    ),
    "open": LazyCommand("edge.appliance.opening:open_console", "Open the console in a browser.", "edge"),
    "bridge": LazyCommand(
        "edge.appliance.crossing.cli:bridge", "Monitor and control the bridge to a hub; prove a lake.", "edge"
    ),
    "analytics": LazyCommand("spark.cli:analytics", "Turn a lake into tables and reports (PySpark).", "spark"),
    "flash": LazyCommand("images.flashing.cli:flash", "Write an image onto cards and verify it.", "images"),
    "balena": LazyCommand("images.balena.cli:balena", "Run gateways as a balena fleet.", "images"),
    "image": LazyCommand("images.cli:image", "Build gateways to install: a folder, a package, an image.", "images"),
}

BRIDGE_PROVE: Final = LazyCommand("cloud.proof.cli:prove", "Prove that a lake has what its gateways accepted.", "cloud")
"""`waypost bridge prove`: needs the hub's packages, and is loaded when it is used."""

FROM_A_CHECKOUT: Final = ("demo", "test", "bench", "docs")
"""Commands that the launcher of a checkout runs itself."""
