"""Report of a machine's set-up: for the hub, the console and the light."""

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
from edge.appliance.first_boot.journal import FirstBootSettings, FirstBootState, SettingsRefusal
from edge.appliance.first_boot.places import DONE, WAITING, WORKING, CardPaths, set_light, write_whole
from edge.broker.store.wear import BlockDevice
from edge.health.storage_life import identify_storage
from edge.output.text import lines
from edge.output.times import moment

ROOT: Final = "run/waypost-root/sha256"
ROOT_EXPECTED: Final = "run/waypost-root/expected"
"""Written at each start by `waypost-root-hash.service`: digests of the running slot, and of the one the card was made
with."""
ISSUE: Final = "run/waypost/issue"
"""Text that the console shows before a login (agetty(8), issue.d)."""
NETWORKS_MAX: Final = 32
"""Network addresses reported: a gateway has a few, a machine with containers hundreds."""


def attestation(places: CardPaths, wanted: FirstBootSettings, certificate: x509.Certificate | None) -> Attestation:
    """Return the current state of the machine."""
    serial = "" if certificate is None else f"{certificate.serial_number:x}"
    ends = "" if certificate is None else moment(certificate.not_valid_after_utc.timestamp())
    quality = "synchronized by a time service" if kernel_synchronized() else "not known to be correct"
    return Attestation(
        settings=wanted.settings,
        hostname=socket.gethostname() if places.root == Path("/") else _text(places.root / _HOSTNAME),
        networks=tuple(_networks())[:NETWORKS_MAX],
        certificate=serial,
        certificate_ends=ends,
        clock=f"{moment(time.time())}, {quality}",
        **system(places),
    )


def system(places: CardPaths) -> dict[str, str]:
    """Return the fields of an attestation that identify the running system, its disk and its card."""
    return {
        "root": _text(places.root / ROOT),
        "root_expected": _text(places.root / ROOT_EXPECTED),
        "version": VERSION,
        "medium": _medium(places),
    }


def _medium(places: CardPaths) -> str:
    """Return the media of the data and of the system: with `data.disk` they are two."""
    devices = BlockDevice.of_all((places.data, places.root), places.root)
    return "; ".join(filter(None, (identify_storage(device.folder) for device in devices)))


def report(places: CardPaths, name: str, state: FirstBootState, refusal: SettingsRefusal | None = None) -> str:
    """Write the text of the console and the state of the light; return the text. Raises OSError.

    `refusal`: reason why the file on the card is not applied, while earlier settings are in force.
    """
    text = "\n".join([*_report_lines(name, state), *_refusal_lines(refusal)]) + "\n"
    light = WAITING if state.trouble or refusal is not None else DONE if state.done_at else WORKING
    write_whole(places.root / ISSUE, lines(text).encode(), mode=0o644)
    set_light(places, light)
    return text


def report_refusal(places: CardPaths, refusal: SettingsRefusal) -> str:
    """Write the text of the console and the state of the light when no settings are in force. Raises OSError."""
    text = "\n".join(_refusal_lines(refusal)) + "\n"
    write_whole(places.root / ISSUE, lines(text).encode(), mode=0o644)
    set_light(places, WAITING)
    return text


def _refusal_lines(refusal: SettingsRefusal | None) -> Sequence[str]:
    return [] if refusal is None else [f"Waypost: {refusal.why}", f"  {refusal.next_step}"]


def _report_lines(name: str, state: FirstBootState) -> Sequence[str]:
    """Return the lines of the console's text."""
    if state.trouble:
        return [f"Waypost {name}: {state.trouble}", f"  {state.next_step}"]
    if not state.done_at:
        return [f"Waypost {name}: being set up"]
    found = state.attestation
    networks = found.get("networks")
    shown = ", ".join(map(str, networks)) if isinstance(networks, list | tuple) and networks else "none"
    report = [
        f"Waypost {name}: set up {state.done_at}",
        f"  name     {found.get('hostname', '')}",
        f"  network  {shown}",
    ]
    if found.get("certificate"):
        report.append(f"  hub      enrolled, certificate {found['certificate']} until {found['certificate_ends']}")
    report += [f"  clock    {found.get('clock', '')}"]
    root, expected = str(found.get("root", "")), str(found.get("root_expected", ""))
    if root:
        same = "unmodified" if root == expected else "MODIFIED"
        report.append(f"  system   {root[:16]}, {same}")
    return report


def _networks() -> Sequence[str]:
    return [
        f"{name} {each.address.partition('%')[0]}"
        for name, addresses in sorted(psutil.net_if_addrs().items())
        for each in addresses
        if name != "lo" and each.family in (socket.AF_INET, socket.AF_INET6)
    ]


_HOSTNAME: Final = "run/waypost-settings/hostname"


def _text(file: Path) -> str:
    """Return the first word of a small file; empty without one."""
    try:
        with file.open(encoding="utf-8", errors="replace") as source:
            return (source.read(256).split() or [""])[0]
    except OSError:
        return ""
