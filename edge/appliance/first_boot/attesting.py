"""What a machine was set up with, as it finds itself; and how it says so on its console and by its light."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil
from cryptography import x509

from bridge.enrolment import Attestation
from bridge.version import VERSION
from edge.appliance.clock import kernel_synchronized
from edge.appliance.first_boot.journal import FirstBootSettings, FirstBootState
from edge.appliance.first_boot.places import DONE, WAITING, WORKING, CardPaths, show, write_whole
from edge.output.text import lines
from edge.output.times import moment

ROOT: Final = "run/waypost-root/sha256"
ROOT_EXPECTED: Final = "run/waypost-root/expected"
"""Both are made at each start (`waypost-root-hash.service`): of the slot that runs, and what the card was made with."""
ISSUE: Final = "run/waypost/issue"
"""What the console shows before somebody logs in (agetty(8), issue.d)."""
NETWORKS_MAX: Final = 32
"""Addresses that are told: a box has a few, a machine with containers hundreds."""


def attestation(places: CardPaths, wanted: FirstBootSettings, certificate: x509.Certificate | None) -> Attestation:
    """As it is now."""
    serial = "" if certificate is None else f"{certificate.serial_number:x}"
    ends = "" if certificate is None else moment(certificate.not_valid_after_utc.timestamp())
    kept = "kept right by a time service" if kernel_synchronized() else "not known to be right"
    return Attestation(
        settings=wanted.settings,
        hostname=socket.gethostname() if places.root == Path("/") else _text(places.root / _HOSTNAME),
        networks=tuple(_networks())[:NETWORKS_MAX],
        certificate=serial,
        certificate_ends=ends,
        clock=f"{moment(time.time())}, {kept}",
        **system(places),
    )


def system(places: CardPaths) -> dict[str, str]:
    """Those fields of it that say which system runs."""
    return {
        "root": _text(places.root / ROOT),
        "root_expected": _text(places.root / ROOT_EXPECTED),
        "version": VERSION,
    }


def report(places: CardPaths, name: str, state: FirstBootState) -> str:
    """Write what console and light show; the text, too. Raises OSError."""
    text = "\n".join(_told(name, state)) + "\n"
    light = WAITING if state.trouble else DONE if state.done_at else WORKING
    write_whole(places.root / ISSUE, lines(text).encode(), mode=0o644)
    show(places, light)
    return text


def _told(name: str, state: FirstBootState) -> Sequence[str]:
    """Line by line."""
    if state.trouble:
        return [f"Waypost {name}: {state.trouble}", f"  {state.next_step}"]
    if not state.done_at:
        return [f"Waypost {name}: being set up"]
    said = state.attestation
    networks = said.get("networks")
    shown = ", ".join(map(str, networks)) if isinstance(networks, list | tuple) and networks else "none"
    told = [f"Waypost {name}: set up {state.done_at}", f"  name     {said.get('hostname', '')}", f"  network  {shown}"]
    if said.get("certificate"):
        told.append(f"  hub      enrolled, certificate {said['certificate']} until {said['certificate_ends']}")
    told += [f"  clock    {said.get('clock', '')}"]
    root, expected = str(said.get("root", "")), str(said.get("root_expected", ""))
    if root:
        same = "as it was made" if root == expected else "NOT as it was made"
        told.append(f"  system   {root[:16]}, {same}")
    return told


def _networks() -> Sequence[str]:
    return [
        f"{name} {each.address.partition('%')[0]}"
        for name, addresses in sorted(psutil.net_if_addrs().items())
        for each in addresses
        if name != "lo" and each.family in (socket.AF_INET, socket.AF_INET6)
    ]


_HOSTNAME: Final = "run/waypost-settings/hostname"


def _text(file: Path) -> str:
    """The first word of a small file; empty where there is none."""
    try:
        with file.open(encoding="utf-8", errors="replace") as source:
            return (source.read(256).split() or [""])[0]
    except OSError:
        return ""
