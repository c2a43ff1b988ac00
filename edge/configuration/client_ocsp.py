"""Rules for OCSP of client certificates."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from bridge.resources.errors import Path
from bridge.resources.resource import Errors, Resource, error_at
from edge.broker.configuration import ClientOcsp
from edge.broker.listeners.ocsp.limits import OCSP_GRACE_S_MAX, OCSP_INTERVAL_S_MAX, OCSP_INTERVAL_S_MIN

PLACE: Final[Path] = ("spec", "listeners", "tls", "clientOcsp")


def ocsp_faults(resource: Resource, wanted: ClientOcsp, *, has_authority: bool) -> Errors:
    """Yield the errors of the part of a gateway. `has_authority`: `clientCa` is set."""
    if not has_authority:
        yield error_at(resource, PLACE, "requires clientCa, whose authorities are asked")
    if wanted.responder is not None and not _is_web_address(wanted.responder):
        yield error_at(resource, (*PLACE, "responder"), f'"{wanted.responder}" is not a URL; expected http://host/')
    if not OCSP_INTERVAL_S_MIN <= wanted.interval <= OCSP_INTERVAL_S_MAX:
        message = f"has to be from {OCSP_INTERVAL_S_MIN:g}s to {OCSP_INTERVAL_S_MAX / 86_400:g}d"
        yield error_at(resource, (*PLACE, "interval"), message)
    if wanted.grace_s > OCSP_GRACE_S_MAX:
        yield error_at(resource, (*PLACE, "offlineGrace"), "has to be a year at most")


def _is_web_address(text: str) -> bool:
    try:
        url = urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError:
        return False
    return bool(host) and url.scheme in ("http", "https")
