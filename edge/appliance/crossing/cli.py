"""`waypost bridge`: the crossing to the hub, watched and steered; and what came of it, proved."""

from __future__ import annotations

from typing import Final

import click

from edge.appliance.commands import BRIDGE_PROVE
from edge.appliance.loading import load

PROVE: Final = "prove"


class Bridge(click.Group):
    """A group one of whose commands is the hub's, and is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of use."""
        return [*self.commands, PROVE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Raises `CommandError` when the packages of the hub are not installed."""
        return load(f"bridge {PROVE}", BRIDGE_PROVE) if cmd_name == PROVE else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Help imports no command."""
        rows = [(name, command.get_short_help_str(70)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([*rows, (PROVE, BRIDGE_PROVE.help)])


@click.group(cls=Bridge, context_settings={"help_option_names": ["-h", "--help"]})
def bridge() -> None:
    """Watch and steer the bridge from a gateway to its hub, and prove that what crossed it is in the lake."""
