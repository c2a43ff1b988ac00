"""Line of the audit for each change that a command makes to a hub's registry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from cloud.fleet.place import HubPlace, current_user, hub_of
from edge.output.errors import CommandError

COMMAND_LINE: Final = "command line"
"""Address of the client of a change by a command."""
_TENANT: Final = "waypost.changed-tenant"
_SUBJECT: Final = "waypost.changed-subject"

F = TypeVar("F", bound=Callable[..., Any])


def audited(action: str, *subject: str) -> Callable[[F], F]:
    """Return a decorator of commands that adds a line to the audit when the command has made its change.

    `action`: noun and verb, as in ``token.create``; `subject`: parameters with the names of what is changed. A command
    without any of them, or with ``--dry-run``, only shows something. Over HTTP the hub adds the line itself.

    The tenant of the line is that of `change_of`, else of option ``--tenant``; without both it is about the hub.
    """

    def wrap(function: F) -> F:
        @functools.wraps(function)
        def run(*places: HubPlace, **given: Any) -> Any:
            hub = places[0] if places else HubPlace(given["data"], given["config"])
            try:
                result = function(*places, **given)
            except (SystemExit, click.exceptions.Exit):  # a change was made; the exit code reports its outcome
                _record(hub, action, subject, given)
                raise
            _record(hub, action, subject, given)
            return result

        return run  # type: ignore[return-value]

    return wrap


def change_of(tenant: str) -> None:
    """Tell the audit the tenant of what the running command has changed; empty for the hub itself."""
    click.get_current_context().meta[_TENANT] = tenant


def subject_of(text: str) -> None:
    """Tell the audit the name of what the running command has changed, where no parameter has it."""
    click.get_current_context().meta[_SUBJECT] = text


def _record(hub: HubPlace, action: str, subject: tuple[str, ...], given: Mapping[str, Any]) -> None:
    from edge.output.terminal import say

    named = [given[name] for name in subject if given.get(name)]
    if hub.client is not None or given.get("dry_run") or (subject and not named):
        return
    words = " ".join(each if isinstance(each, str) else ", ".join(each) for each in named)
    try:
        _add(hub, action, click.get_current_context().meta.get(_SUBJECT, words), given)
    except CommandError as error:
        say(f"note: the change was made, and is not in the audit: {error}", err=True)


def _add(hub: HubPlace, action: str, subject: str, given: Mapping[str, Any]) -> None:
    import contextlib
    import time

    from cloud.hub.data import WRITER
    from cloud.hub.limits import AUDIT_TEXT_CHARACTERS_MAX
    from cloud.hub.registry.audit import Audit, AuditEntry
    from edge.output.text import line

    if not (hub.data / WRITER).is_file():
        return  # no hub has run there: the first users are added before there is a registry
    if hub.config is None and not (hub.data / "registry.db").is_file():
        raise CommandError("its registry is elsewhere: give --config", error="wrong-usage")
    entry = AuditEntry(
        at=time.time_ns() // 1_000,
        user=current_user(),
        remote=COMMAND_LINE,
        tenant=click.get_current_context().meta.get(_TENANT, given.get("tenant") or ""),
        action=action,
        subject=line(subject[:AUDIT_TEXT_CHARACTERS_MAX]),
        before=None,
        after=None,
        status=200,
        error="",
    )
    with hub_of(hub) as (_, registry), contextlib.closing(Audit(registry)) as audit:
        audit.add([entry])
