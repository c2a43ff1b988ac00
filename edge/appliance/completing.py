"""Live values for a Tab: names of clients, addresses, users, gateways and contexts, within 300 ms.

When the node is away, not signed in to, or too slow, there are no values: a Tab never shows an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from edge.appliance.where import find_data
from edge.output.errors import CommandError
from edge.remote import contexts

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from edge.remote.client import ConsoleClient

ANSWER_S: Final = 0.3
"""Time limit for the answer of a node."""
VALUES_MAX: Final = 50
"""Values of one Tab."""
UNSAFE: Final = frozenset(" \t\n\"'`\\$&;|<>()*?[]{}~!#,:")
"""Characters that a shell, or the scripts of click, interpret: names with one are not completed."""


class LiveValues(NamedTuple):
    """Values of a parameter: a list of the API."""

    route: str
    key: str
    name: str


CLIENTS: Final = LiveValues("clients", "clients", "name")
ADDRESSES: Final = LiveValues("addresses", "addresses", "address")
GATEWAYS: Final = LiveValues("gateways", "gateways", "name")
USERS: Final = LiveValues("users", "users", "name")
TOKENS: Final = LiveValues("tokens", "tokens", "id")
COMMANDS: Final = LiveValues("commands", "commands", "id")
ROLLOUTS: Final = LiveValues("rollouts", "rollouts", "id")
CAMPAIGNS: Final = LiveValues("campaigns", "campaigns", "id")
ALERTS: Final = LiveValues("alerts", "alerts", "id")
MUTES: Final = LiveValues("mutes", "mutes", "id")

LIVE: Final[dict[tuple[str, str], LiveValues]] = {
    ("client show", "name"): CLIENTS,
    ("client disconnect", "name"): CLIENTS,
    ("client trace", "client"): CLIENTS,
    ("client trace", "address"): ADDRESSES,
    ("trace", "address"): ADDRESSES,
    ("message browse", "address"): ADDRESSES,
    ("message pub", "address"): ADDRESSES,
    ("gateway show", "gateway"): GATEWAYS,
    ("gateway revoke", "gateway"): GATEWAYS,
    ("gateway forget", "gateway"): GATEWAYS,
    ("gateway label", "gateway"): GATEWAYS,
    ("token create", "gateway"): GATEWAYS,
    ("token revoke", "token_id"): TOKENS,
    ("config apply", "gateways"): GATEWAYS,
    ("config get", "gateway"): GATEWAYS,
    ("config history", "gateway"): GATEWAYS,
    ("config diff", "gateway"): GATEWAYS,
    ("config rollback", "gateways"): GATEWAYS,
    ("rollout start", "gateways"): GATEWAYS,
    ("rollout status", "rollout_id"): ROLLOUTS,
    ("rollout pause", "rollout_id"): ROLLOUTS,
    ("rollout resume", "rollout_id"): ROLLOUTS,
    ("rollout abort", "rollout_id"): ROLLOUTS,
    ("campaign show", "campaign_id"): CAMPAIGNS,
    ("campaign pause", "campaign_id"): CAMPAIGNS,
    ("campaign resume", "campaign_id"): CAMPAIGNS,
    ("campaign stop", "campaign_id"): CAMPAIGNS,
    ("hub user remove", "name"): USERS,
    ("command list", "gateway"): GATEWAYS,
    ("command status", "identifier"): COMMANDS,
    ("command cancel", "identifier"): COMMANDS,
    ("alert ack", "identifier"): ALERTS,
    ("alert mute", "gateway"): GATEWAYS,
    ("alert unmute", "identifier"): MUTES,
}
"""Values by command and parameter."""
CONTEXTS: Final = frozenset(
    {("context use", "name"), ("context remove", "name"), ("logout", "name"), ("login", "name")}
)
"""Parameters that name a context."""


class LiveName(click.types.StringParamType):
    """Text that a Tab completes with names of a node."""

    def __init__(self, values: LiveValues, first: str) -> None:
        """`first`: first word of the command, which decides whether a gateway or a hub is asked."""
        self._values = values
        self._first = first

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin with a text; none when the node does not answer at once."""
        try:
            client = _client(ctx, self._first)
            page = client.ask(self._values.route, answer_s=ANSWER_S, limit=VALUES_MAX, q=incomplete or None)
            names = [str(row[self._values.name]) for row in page[self._values.key]]
        except (click.ClickException, OSError, ValueError, KeyError, TypeError):
            return []
        return _items(names, incomplete)


class ContextName(click.types.StringParamType):
    """Text that a Tab completes with names of contexts."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the contexts that begin with a text."""
        try:
            return _items(list(contexts.read().contexts), incomplete)
        except click.ClickException:
            return []


def give_values(command: click.Command, words: Sequence[str]) -> None:
    """Give the parameters of a command and of those below it their live values."""
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            give_values(below, (*words, name))
    path = " ".join(words)
    for parameter in command.params:
        key = (path, parameter.name or "")
        if key in CONTEXTS or parameter.name == "hub":
            parameter.type = ContextName()
        elif key in LIVE:
            parameter.type = LiveName(LIVE[key], words[0])


def _client(context: click.Context, first: str) -> ConsoleClient:
    """Return the client of the node of a command line that is being typed. Raises CommandError."""
    from edge.appliance.opening import find_console, operator_client  # noqa: PLC0415 - only for a Tab
    from edge.remote.session import client_of, parse_url  # noqa: PLC0415 - only for a Tab

    given = context.params.get("http") or context.params.get("hub")
    if given is not None:
        return client_of(parse_url(given, "--http"))
    data = context.params.get("data") or find_data(first, context, required=False)
    if data is not None:
        return operator_client(find_console(Path(data)).here, Path(data))
    used = contexts.read().used
    if used is None or not used.url:
        raise CommandError("no node", error="no-context")
    return client_of(used.url)


def _items(names: Sequence[str], incomplete: str) -> list[CompletionItem]:
    """Return names for a shell: those without characters that it would interpret."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415 - only for a shell

    plain = dict.fromkeys(name for name in names if name.isprintable() and not set(name) & UNSAFE)
    return [CompletionItem(name) for name in plain if name.startswith(incomplete)][:VALUES_MAX]
