"""Pinned packages that a gateway needs, also for a machine of another kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from images.errors import ImageError

DISTRIBUTION: Final = "waypost"


def find_required(root: str, environment: Mapping[str, str]) -> set[str]:
    """Return the names of all packages that `root` requires, directly or not, in an environment (PEP 508).

    Raises ImageError if one of them is not installed here.
    """
    found: set[str] = set()
    waiting = [Requirement(root)]
    seen: set[tuple[str, str]] = set()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        found.add(name)
        for extra in ("", *one.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += _read_requirements(name, {**environment, "extra": extra})
    return found - {canonicalize_name(Requirement(root).name)}


def _read_requirements(name: str, environment: Mapping[str, str]) -> Iterator[Requirement]:
    try:
        texts = requires(name) or ()
    except PackageNotFoundError:
        raise ImageError(
            f"the Python package {name} is not installed here", hint="use a checkout's ./waypost"
        ) from None
    for text in texts:
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate(dict(environment)):
            yield wanted


def select_entries(lock: str, names: Iterable[str]) -> str:
    """Return the lines of a lock file for these packages, with hashes. Raises ImageError if one is missing."""
    blocks: dict[str, str] = {
        canonicalize_name(block.partition("==")[0]): block
        for block in re.split(r"\n(?=[A-Za-z0-9])", lock)
        if "==" in block
    }
    lacking = sorted(set(names) - set(blocks))
    if lacking:
        raise ImageError(f"requirements.lock has no {', '.join(lacking)}", hint="make lock")
    return "".join(f"{blocks[name].rstrip()}\n" for name in sorted(set(names)))
