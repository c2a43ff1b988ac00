"""Names of gateways: as the pages show them, and as people type them.

A tenant's name has no `/` (`cloud/hub/peers.py`), a gateway's may have one: the first `/` of `TENANT/NAME` ends the
tenant.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Final

from spark.report.tables import Gateway

SAID_MAX: Final = 10
"""Names that one message lists: more do not help who mistyped one."""
_DEFAULT_TENANT = "default"


class NoGateway(LookupError):
    """No gateway of this name, or several; the message says so, and lists what there is."""


def full_name(gateway: Gateway) -> str:
    """`TENANT/NAME`, which is of one gateway only."""
    return "/".join(gateway)


def short_name(gateway: Gateway) -> str:
    """A gateway's name; with its tenant where that is not the default one, or the name looks like a whole one."""
    tenant, name = gateway
    return name if tenant == _DEFAULT_TENANT and "/" not in name else full_name(gateway)


def find_gateway(name: str, known: Collection[Gateway]) -> Gateway:
    """The gateway of `known` that is called `TENANT/NAME`, or else the only one that is called `NAME`.

    Raises `NoGateway`.
    """
    whole = [gateway for gateway in known if full_name(gateway) == name]
    chosen = whole or [gateway for gateway in known if gateway[1] == name]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        raise NoGateway(
            f"several gateways are named {name!r}: choose one of {_join_names(map(full_name, sorted(chosen)))}"
        )
    if not known:
        raise NoGateway(f"no gateway named {name!r} is known: run `waypost analytics run` on this lake first")
    names = sorted(map(short_name, known))
    like = difflib.get_close_matches(name, names, SAID_MAX)
    hint = f"did you mean {_join_names(like, 'or')}?" if like else f"there are {_join_names(names)}"
    raise NoGateway(f"no gateway named {name!r} is known in this lake; {hint}")


def _join_names(names: Iterable[str], word: str = "and") -> str:
    every = list(names)
    more = len(every) - SAID_MAX
    if more > 0:
        return f"{', '.join(every[:SAID_MAX])} and {more:,} more"
    return f" {word} ".join(filter(None, [", ".join(every[:-1]), every[-1]]))
