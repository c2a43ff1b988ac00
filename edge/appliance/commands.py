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
        "init": LazyCommand("edge.appliance.initial.cli:init", "Create the data directory of a gateway.", "edge"),
        "run": LazyCommand("edge.appliance.cli:run", "Run a gateway until SIGTERM.", "edge"),
        "enrol": LazyCommand("edge.appliance.identity.commands:enrol", "Enrol a gateway at a hub.", "edge"),
        "import": LazyCommand(
            "edge.appliance.importing.cli:import_configuration", "Import another broker's configuration.", "edge"
        ),
        "shadow": LazyCommand("edge.appliance.shadow.cli:shadow", "Mirror another broker, and move over.", "edge"),
        "doctor": LazyCommand("edge.appliance.doctor.cli:doctor", "Diagnose a gateway and suggest fixes.", "edge"),
        "open": LazyCommand("edge.appliance.opening:open_console", "Open the console, signed in as operator.", "edge"),
    },
    "Look": {
        "status": LazyCommand("edge.appliance.cli:status", "Show the status of a gateway.", "edge"),
        "top": LazyCommand("edge.appliance.watching.cli:top", "Show the gateway live, on the full screen.", "edge"),
        "watch": LazyCommand("edge.appliance.watching.cli:watch", "Repeat a command, and mark changes.", "edge"),
        "events": LazyCommand("edge.appliance.watching.cli:events", "Show what happens at a gateway or fleet.", "edge"),
        "log": LazyCommand("edge.appliance.watching.log:log", "Show the log of a gateway or hub.", "edge"),
        "audit": LazyCommand("edge.appliance.watching.audit:audit", "Show who changed what.", "edge"),
        "topology": LazyCommand(
            "edge.appliance.crossing.topology_cli:topology", "Draw the router network of a gateway.", "edge"
        ),
        "trace": LazyCommand("edge.appliance.addresses.cli:trace_address", "Explain where messages go.", "edge"),
    },
    "Gateway": {
        "get": LazyCommand("edge.appliance.resource_commands:get", "List applied resources.", "edge"),
        "describe": LazyCommand("edge.appliance.resource_commands:describe", "Show one resource in full.", "edge"),
        "apply": LazyCommand("edge.appliance.resource_commands:apply", "Apply resources from YAML.", "edge"),
        "diff": LazyCommand("edge.appliance.resource_commands:diff", "Show what `apply` would change.", "edge"),
        "delete": LazyCommand("edge.appliance.resource_commands:delete", "Delete resources.", "edge"),
        "user": LazyCommand("edge.appliance.accounts.cli:user", "Manage users: devices and people.", "edge"),
        "device": LazyCommand("edge.appliance.devices.cli:device", "Add devices, with the settings to paste.", "edge"),
        "problem": LazyCommand("edge.appliance.muting.cli:problem", "Show problems, and mute them.", "edge"),
        "client": LazyCommand("edge.appliance.clients.cli:client", "Show clients, and disconnect them.", "edge"),
        "address": LazyCommand("edge.appliance.addresses.cli:address", "Show addresses with their messages.", "edge"),
        "message": LazyCommand("edge.appliance.messages.cli:message", "Send and browse messages.", "edge"),
        "store": LazyCommand("edge.appliance.store.cli:store", "Inspect and repair the store.", "edge"),
        "bridge": LazyCommand("edge.appliance.crossing.cli:bridge", "Monitor and control the bridge to a hub.", "edge"),
        "replace": LazyCommand("edge.appliance.replacing.cli:replace", "Move a gateway to another card.", "edge"),
        "update": LazyCommand("edge.appliance.update.cli:update", "Install, test and roll back updates.", "edge"),
    },
    "Fleet (hub)": {
        "hub": LazyCommand("cloud.fleet.hub_cli:hub", "Run a hub, and manage its users.", "cloud"),
        "gateway": LazyCommand("cloud.fleet.cli:gateway", "Manage the gateways of a hub.", "cloud"),
        "token": LazyCommand("cloud.fleet.cli:token", "Manage enrolment tokens.", "cloud"),
        "config": LazyCommand("cloud.fleet.configuration:config", "Configure gateways from the hub.", "cloud"),
        "rollout": LazyCommand("cloud.fleet.rollout:rollout", "Roll out a configuration in waves.", "cloud"),
        "artefact": LazyCommand("cloud.fleet.artefacts:artefact", "Sign and upload software for devices.", "cloud"),
        "campaign": LazyCommand("cloud.fleet.campaigns:campaign", "Update devices in waves, as they report.", "cloud"),
        "command": LazyCommand("cloud.fleet.commands:command", "Send commands to devices.", "cloud"),
        "alert": LazyCommand("cloud.fleet.alerts:alert", "Manage the alerts of a hub.", "cloud"),
        "tenant": LazyCommand("cloud.fleet.tenants:tenant", "Show tenants with their usage.", "cloud"),
    },
    "Data": {
        "lake": LazyCommand("spark.cli:analytics", "Analyse a lake.", "spark"),
        "report": LazyCommand("spark.cli:report", "Draw the report of a lake.", "spark"),
        "receipt": LazyCommand("edge.appliance.receipts.cli:receipt", "Verify receipts of landed messages.", "edge"),
        "prove": LazyCommand("cloud.proof.cli:prove", "Prove that a lake has every message.", "cloud"),
        "simulate": LazyCommand(
            "simulator.measuring.cli:simulate", "Run a device that measures this machine.", "simulator"
        ),
    },
    "Cards": {
        "image": LazyCommand("images.cli:image", "Build a gateway to install.", "images"),
        "flash": LazyCommand("images.flashing.cli:flash", "Write an image onto cards and verify it.", "images"),
        "balena": LazyCommand("images.balena.cli:balena", "Run gateways as a balena fleet.", "images"),
    },
    "More": {
        "explain": LazyCommand("edge.appliance.explaining.cli:explain", "Explain a problem or a reason code.", "edge"),
        "completion": LazyCommand(
            "edge.appliance.completion:completion", "Print a completion script for a shell.", "edge"
        ),
        "context": LazyCommand(
            "edge.appliance.context_commands:context", "Choose the gateway or hub to work with.", "edge"
        ),
        "login": LazyCommand("edge.appliance.signing_in:login", "Sign in to a gateway or hub anywhere.", "edge"),
        "logout": LazyCommand("edge.appliance.signing_in:logout", "End the session of a context.", "edge"),
        "schema": LazyCommand("edge.appliance.resource_commands:schema", "Print the JSON schema of resources.", "edge"),
    },
}
"""Commands by the section of `waypost --help`."""

PARTS: Final[dict[str, dict[str, LazyCommand]]] = {
    "device": {
        "simulate": LazyCommand("simulator.cli:simulate", "Simulate thousands of devices, from one file.", "simulator"),
    },
}
"""Commands of a group that are in another package than the group."""

HIDDEN: Final[dict[str, LazyCommand]] = {
    "first-boot": LazyCommand(
        "edge.appliance.first_boot.cli:first_boot", "Set up a gateway from the file on its card.", "edge"
    ),
    "version": LazyCommand("edge.appliance.version:version", "Show the version.", "edge"),
}
"""Commands of services, which people do not type, and `version`: the list has the option `--version`."""

FLEET: Final = tuple(SECTIONS["Fleet (hub)"])
"""Commands on the data directory of a hub."""

COMMANDS: Final = {name: entry for section in (*SECTIONS.values(), HIDDEN) for name, entry in section.items()}

COMPLETION_VARIABLE: Final = "_WAYPOST_COMPLETE"
"""Environment variable by which the script of `waypost completion` asks for words."""

FROM_A_CHECKOUT: Final = ("demo", "test", "bench", "docs")
"""Commands that the launcher of a checkout runs itself."""
