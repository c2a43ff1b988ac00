"""Names of gateways, as pages show them and as users type them.

A tenant's name contains no `/` (`cloud/hub/peers.py`), but a gateway's may. The first `/` of `TENANT/NAME` ends the
tenant.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Final

from spark.report.tables import Gateway

SAID_MAX: Final = 10
"""Number of names that a message lists; more do not help after a typing error."""
_DEFAULT_TENANT = "default"


class NoGateway(LookupError):
    """No gateway has this name, or several have it. The message says which, and lists the known ones."""


def full_name(gateway: Gateway) -> str:
    """Return `TENANT/NAME`, which names one gateway only."""
    return "/".join(gateway)


def short_name(gateway: Gateway) -> str:
    """Return a gateway's name, with its tenant if that is not the default one or the name looks like `TENANT/NAME`."""
    tenant, name = gateway
    return name if tenant == _DEFAULT_TENANT and "/" not in name else full_name(gateway)


def find_gateway(name: str, known: Collection[Gateway]) -> Gateway:
    """Return the gateway in `known` named `TENANT/NAME`, or else the only one named `NAME`.

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
        raise NoGateway(f"no gateway named {name!r} is known: run `waypost lake run` on this lake first")
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
