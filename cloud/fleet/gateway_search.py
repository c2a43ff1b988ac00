"""Options of `waypost gateway list` that choose gateways by version, problem, connection and the time last seen."""

from __future__ import annotations

import asyncio
import datetime
import functools
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec

import click

from edge.health.problems import Severity
from edge.output.errors import CommandError, Exit

if TYPE_CHECKING:
    import sqlalchemy as sa

P = ParamSpec("P")

_AGE: Final = re.compile(r"\d{1,9}[smhd]", re.ASCII)
_WHEN: Final = "an age or a time: 12h, 7d, 2026-11-21T08:00."


def _when(_context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """Return an age, or a time in milliseconds since 1970, UTC by default. Raises click.BadParameter."""
    if text is None or _AGE.fullmatch(text):
        return text
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f'"{text}" is neither an age (12h, 7d) nor a time (2026-11-21T08:00)') from None
    return str(int((at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)).timestamp() * 1_000))


_OPTIONS: Final = (
    click.option("--version", metavar="VERSION", help="Only with this version, as they report it."),
    click.option("--older-than", metavar="VERSION", help="Only with a version before this one, as in 1.5.0."),
    click.option("--problem", metavar="NAME", help="Only with this open problem, of `waypost gateway problems`."),
    click.option(
        "--severity",
        type=click.Choice([each.value for each in Severity]),
        help="Only with an open problem of this severity.",
    ),
    click.option("--connected/--away", default=None, help="Only those that are connected, or that are not."),
    click.option("--seen-before", metavar="WHEN", callback=_when, help=f"Only those away, last seen before {_WHEN}"),
    click.option("--seen-after", metavar="WHEN", callback=_when, help=f"Only those connected, or seen since {_WHEN}"),
)
_NAMES: Final = ("version", "older_than", "problem", "severity", "connected", "seen_before", "seen_after")


def search_options(
    function: Callable[Concatenate[dict[str, str], P], None],
) -> Callable[P, None]:
    """Add the options; their parameter, the first one, has the query of `GET /api/v1/gateways`."""

    @functools.wraps(function)
    def collected(*given: Any, **named: Any) -> None:
        query = {name: named.pop(name) for name in _NAMES}
        if query["connected"] is not None:
            query["connected"] = "true" if query["connected"] else "false"
        function({name: value for name, value in query.items() if value is not None}, *given, **named)

    for option in reversed(_OPTIONS):
        collected = option(collected)
    return collected


def find_gateways(registry: sa.URL, query: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return tenants and names of the gateways of a query, from a registry. Raises `CommandError`, `RegistryError`."""
    from cloud.hub.fleet import FleetState
    from cloud.hub.fleet_view import FleetViews
    from cloud.hub.gateways_http import read_query
    from edge.broker.http.refusal import RequestRefused

    def now_us() -> int:
        return time.time_ns() // 1_000

    async def find() -> set[tuple[str, str]]:
        views = FleetViews(FleetState(), registry, now_us=now_us, clock=time.monotonic)
        try:
            await views.open()
            parts = [part async for part in views.of(None).every(read_query(query, now_us()))]
        except RequestRefused as refused:
            raise CommandError(str(refused), code=Exit.USAGE, error="invalid-value") from None
        finally:
            await views.close()
        return {one.key for part in parts for one in part}

    return asyncio.run(find())
