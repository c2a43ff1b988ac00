"""Simple values of resources: durations, sizes, URLs. Text or number in, SI units out.

Each function raises `ValueError` with the expected form, which is shown after ``file:line: path:``.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from bridge.resources.endpoint import ListenEndpoint

_DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
SIZE_UNITS: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
DURATION_PATTERN: Final = rf"^\s*\d+(\.\d+)?\s*({'|'.join(_DURATION_UNITS)})\s*$"
SIZE_PATTERN: Final = rf"^\s*\d+(\.\d+)?\s*({'|'.join(SIZE_UNITS)})\s*$"
HUB_PORTS: Final = {"amqp": 5672, "amqps": 5671, "ws": 80, "wss": 443}
"""Default ports of a hub by the scheme of its URL."""
_PATH: Final = re.compile(r"/[!-~]*")
DURATION_S_MAX: Final = 100 * 366 * 86400.0
"""A century: a longer duration has a wrong unit."""
SIZE_BYTES_MAX: Final = 2**53
"""Largest integer that every JSON parser keeps exactly; eight million gigabytes."""


def duration(value: str | int | float) -> float:
    """Return seconds. A number is milliseconds, as in EnMasse; text has a unit: ``90s``, ``1.5h``, ``7d``."""
    if isinstance(value, str):
        found = _QUANTITY.fullmatch(value.strip())
        if found is None or found[2] not in _DURATION_UNITS:
            raise ValueError(
                f'"{value}" is not a duration; expected a number of milliseconds, or text such as 500ms, 90s, 1.5h, 7d'
            )
        seconds = float(found[1]) * _DURATION_UNITS[found[2]]
    else:
        seconds = value / 1000
    if not 0 <= seconds <= DURATION_S_MAX or math.isnan(seconds):
        raise ValueError(f"{value} is out of range: 0 to 100 years")
    return seconds


def size(value: str | int) -> int:
    """Return bytes. A number is bytes; text may have a Kubernetes suffix: ``64Mi``, ``2G``."""
    if isinstance(value, str):
        found = _QUANTITY.fullmatch(value.strip())
        if found is None or found[2] not in SIZE_UNITS:
            raise ValueError(f'"{value}" is not a size; expected bytes as a number, or a text such as 512Ki, 64Mi, 2G')
        bytes_ = round(float(found[1]) * SIZE_UNITS[found[2]])
    else:
        bytes_ = value
    if not 0 <= bytes_ <= SIZE_BYTES_MAX:
        raise ValueError(f"{value} is out of range: 0 to {SIZE_BYTES_MAX} bytes")
    return bytes_


class HubUrl(NamedTuple):
    """URL of a hub: ``amqps://host:port``, or over WebSocket ``wss://host:port/path``."""

    secure: bool
    """True for TLS."""
    endpoint: ListenEndpoint
    path: str | None = None
    """Path of the WebSocket; None: plain AMQP."""

    @classmethod
    def parse(cls, url: str) -> HubUrl:
        """Parse ``amqp``, ``amqps``, ``ws`` or ``wss``; default ports 5672, 5671, 80 and 443. Raises `ValueError`."""
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in HUB_PORTS:
            raise ValueError(f'"{url}" is not a hub URL; expected amqps://host:port, or over WebSocket wss://host:port')
        secure, path = scheme in ("amqps", "wss"), None
        if scheme in ("ws", "wss"):
            rest, _, path = rest.partition("/")
            path = f"/{path}"
            if not _PATH.fullmatch(path):
                raise ValueError(f'"{url}": {path} is not a URL path; percent-encode non-ASCII characters')
        else:
            rest = rest.rstrip("/")
        bare_ipv6 = rest.startswith("[") and rest.endswith("]")
        if rest and (bare_ipv6 or ":" not in rest):
            rest += f":{HUB_PORTS[scheme]}"
        return cls(secure, ListenEndpoint.parse(rest), path)
