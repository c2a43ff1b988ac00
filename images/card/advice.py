"""Notes about settings that are valid and probably a mistake. They are printed, and never refuse anything."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Final

from bridge.resources.values import HubUrl
from edge.card.resource import Card

NAMES_MAX: Final = 3
"""Gateways that one note names."""


def list_notes(cards: Sequence[Card]) -> Iterator[str]:
    """Yield a line for each note, with the gateways that it is about."""
    found: dict[str, list[str]] = {}
    for card in cards:
        for words in _list_notes(card):
            found.setdefault(words, []).append(card.name)
    for words, names in found.items():
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        yield f"{', '.join(names[:NAMES_MAX])}{more}: {words}"


def _list_notes(card: Card) -> Iterator[str]:
    spec = card.spec
    if not spec.ssh_keys:
        yield "without sshKeys login is impossible, and devices get their passwords there"
    hosts = [] if spec.hub is None else [HubUrl.parse(url).endpoint.host for url in (spec.hub.url, *spec.hub.failover)]
    if spec.hub is not None and spec.hub.proxy is not None:
        hosts = [spec.hub.proxy.host]
    cable = spec.cable
    if cable is None or spec.wifi is not None or spec.lte is not None:  # other networks supply name servers, too
        return
    names = [host for host in (*hosts, *spec.time_servers) if _parse_address(host) is None]
    if names and not cable.dns:
        yield f"without cable.dns it cannot resolve host names: {names[0]}"
    network = ipaddress.ip_interface(cable.address).network
    away = [host for host in hosts if (address := _parse_address(host)) is None or address not in network]
    if away and cable.gateway is None:
        yield f"without cable.gateway it reaches only {network}, and perhaps not {away[0]}"


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
