"""Table of the commands; each is imported when it is used."""

from __future__ import annotations

from typing import Final, NamedTuple


class LazyCommand(NamedTuple):
    """Location of a command (``module:attribute``), its line in `--help`, and the extra that has its packages."""

    place: str
    help: str
    extra: str


SECTIONS: Final[dict[str, dict[str, LazyCommand]]] = {
    "Get going": {
        "edge": LazyCommand("edge.appliance.cli:edge", "Run and set up a gateway.", "edge"),
        "doctor": LazyCommand("edge.appliance.doctor.cli:doctor", "Diagnose a gateway and suggest fixes.", "edge"),
        "open": LazyCommand("edge.appliance.opening:open_console", "Open the console, signed in as operator.", "edge"),
    },
    "Gateway": {
        "get": LazyCommand("edge.appliance.resource_commands:get", "List applied resources.", "edge"),
        "describe": LazyCommand("edge.appliance.resource_commands:describe", "Show one resource in full.", "edge"),
        "apply": LazyCommand("edge.appliance.resource_commands:apply", "Apply resources from YAML.", "edge"),
        "diff": LazyCommand("edge.appliance.resource_commands:diff", "Show what `apply` would change.", "edge"),
        "delete": LazyCommand("edge.appliance.resource_commands:delete", "Delete resources.", "edge"),
        "device": LazyCommand("edge.appliance.accounts.cli:device", "Manage users: devices and people.", "edge"),
        "client": LazyCommand("edge.appliance.clients.cli:client", "Show clients, and disconnect them.", "edge"),
        "store": LazyCommand("edge.appliance.store.cli:store", "Inspect and repair the store.", "edge"),
        "bridge": LazyCommand("edge.appliance.crossing.cli:bridge", "Monitor and control the bridge to a hub.", "edge"),
    },
    "Fleet (hub)": {
        "hub": LazyCommand("cloud.hub.cli:hub", "Run a hub, and manage its users.", "cloud"),
        "fleet": LazyCommand("cloud.fleet.cli:fleet", "Manage the gateways of a hub.", "cloud"),
    },
    "Data": {
        "analytics": LazyCommand("spark.cli:analytics", "Analyse a lake.", "spark"),
    },
    "Cards": {
        "image": LazyCommand("images.cli:image", "Build a gateway to install.", "images"),
        "flash": LazyCommand("images.flashing.cli:flash", "Write an image onto cards and verify it.", "images"),
        "balena": LazyCommand("images.balena.cli:balena", "Run gateways as a balena fleet.", "images"),
    },
    "More": {
        "schema": LazyCommand("edge.appliance.resource_commands:schema", "Print the JSON schema of resources.", "edge"),
    },
}
"""Commands by the section of `waypost --help`."""

COMMANDS: Final = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

BRIDGE_PROVE: Final = LazyCommand("cloud.proof.cli:prove", "Prove that a lake has every message.", "cloud")
"""`waypost bridge prove`: needs the hub's packages, and is loaded when it is used."""

FROM_A_CHECKOUT: Final = ("demo", "test", "bench", "docs")
"""Commands that the launcher of a checkout runs itself."""
