"""`waypost gateway problems` and `with-problem`: problems of a fleet, from its hub."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click

from cloud.fleet.place import HubPlace, hub_of, hub_options
from edge.health.problems import Severity
from edge.output.listing import Listing, output_option, print_listing
from edge.output.times import moment

if TYPE_CHECKING:
    from cloud.hub.registry.problem_reader import ProblemReader

FLEET_PROBLEMS: Final = Listing(
    "fleet-problem",
    "name",
    ("severity", "name", "gateways", "away", "since", "places", "what"),
    ("count", "hubs"),
    "no problems",
)
PROBLEM_PLACES: Final = Listing(
    "problem-place",
    "gateway",
    ("severity", "tenant", "gateway", "hub", "what", "since"),
    ("name", "connected", "last_seen", "next_step"),
    "no gateway or hub has it",
)
ROWS: Final = 500
"""Rows that are read at once."""
severity_option = click.option(
    "--severity", type=click.Choice([each.value for each in Severity]), help="Only problems of this severity."
)
scope_option = click.option("--tenant", help="Only of this tenant.  [default: all that you may see]")


@click.command()
@hub_options
@severity_option
@scope_option
@output_option("fleet-problem")
def problems(hub: HubPlace, severity: str | None, tenant: str | None, form: str) -> None:
    """List the problems of a fleet, by name.

    Those of all gateways and hubs of the registry, as they have last reported them: how many gateways have each, how
    many of these are away, and the begin of the first one. `with-problem` lists the places of one, and
    `waypost gateway list --problem NAME` the gateways that have it.

    \b
      waypost gateway problems --data ./hub
      waypost gateway problems --severity error -o json
    """
    print_listing(FLEET_PROBLEMS, [_row(each) for each in _groups(hub, severity or "", tenant or "")], form)


@click.command("with-problem")
@hub_options
@click.argument("name")
@severity_option
@scope_option
@output_option("problem-place")
def with_problem(hub: HubPlace, name: str, severity: str | None, tenant: str | None, form: str) -> None:
    """List gateways and hubs with a problem.

    NAME: as in `problems`.

    \b
      waypost gateway with-problem store --data ./hub
    """
    rows = [_place_row(each) for each in _places(hub, name, severity or "", tenant or "")]
    print_listing(PROBLEM_PLACES, rows, form)


def _filters(severity: str, tenant: str) -> dict[str, str | None]:
    """Return the filters of a list over HTTP."""
    return {"severity": severity or None, "tenant": tenant or None}


def _groups(hub: HubPlace, severity: str, tenant: str) -> Iterator[dict[str, Any]]:
    """Yield problems by name, as documents."""
    import msgspec

    from cloud.hub.events.problems_http import group_document
    from cloud.hub.registry.problem_reader import ProblemFilter

    if hub.client is not None:
        yield from hub.client.pages("problems", "problems", _filters(severity, tenant))
        return
    with _reader(hub) as reader:
        wanted, after = ProblemFilter(tenant or None, severity=severity), ""
        while found := reader.groups(wanted, after, ROWS)[0]:
            yield from (msgspec.to_builtins(group_document(each, {})) for each in found)
            after = found[-1].code


def _places(hub: HubPlace, name: str, severity: str, tenant: str) -> Iterator[dict[str, Any]]:
    """Yield the places of a problem, as documents."""
    import msgspec

    from cloud.hub.events.problems_http import place_document
    from cloud.hub.registry.problem_reader import ProblemFilter

    if hub.client is not None:
        path = f"problems/{quote(name, safe='')}"
        yield from hub.client.pages(path, "places", _filters(severity, tenant))
        return
    with _reader(hub) as reader:
        wanted, after = ProblemFilter(tenant or None, severity=severity, code=name), None
        while found := reader.places(wanted, after, ROWS)[0]:
            yield from (msgspec.to_builtins(place_document(each, {})) for each in found)
            after = found[-1].place


@contextlib.contextmanager
def _reader(hub: HubPlace) -> Iterator[ProblemReader]:
    """Open the problems in the registry. Raises CommandError."""
    from cloud.hub.registry.opening import open_registry
    from cloud.hub.registry.problem_reader import ProblemReader

    with hub_of(hub) as (_, registry):
        open_registry(registry).database.close()  # creates the tables of this program
        with contextlib.closing(ProblemReader(registry)) as reader:
            yield reader


def _row(group: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a name; a list of places that goes on ends with an ellipsis."""
    places = [each["gateway"] or each["hub"] for each in group["places"]]
    more = ["…"] if group["count"] > len(places) else []
    what = group["places"][0]["what"] if group["places"] else ""
    return {**group, "places": ", ".join([*places, *more]), "what": what, "since": moment(group["since"] / 1_000)}


def _place_row(place: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a place; a hub of an older version does not say when a gateway was seen."""
    last_seen = place.get("last_seen")
    seen = moment(last_seen / 1_000) if last_seen is not None else None
    return {**place, "since": moment(place["since"] / 1_000), "last_seen": seen}
