"""Text of the file on a card: each setting has a comment, and missing ones a commented example."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from bridge.resources.parse import to_yaml
from bridge.resources.resource import OWN_VERSION
from edge.card.fields import PLACEHOLDER
from edge.card.resource import KIND, Plain

SECRETS: Final[Sequence[Sequence[str]]] = (
    ("wifi", "password"),
    ("wifi", "login", "password"),
    ("wifi", "login", "key"),
    ("lte", "password"),
    ("lte", "pin"),
    ("hub", "token"),
    ("hub", "proxy", "password"),
)
"""Paths of the secrets in `spec`."""

_HEAD: Final = """\
# Settings of a Waypost gateway. It reads this file once, at a start; then only a copy without secrets stays here.
# Lines that start with # are ignored: remove the # from those that you fill in. Indentation matters.
# Check it on a laptop: waypost image configure --check waypost.yaml
"""


class _Section(NamedTuple):
    """Key of `spec` with its comment and example."""

    key: str
    comment: str
    example: str


_SECTIONS: Final = (
    _Section("hostname", "Name of the machine; by default the gateway's", "hostname: hall"),
    _Section(
        "cable",
        "Fixed address of the wired network; by default DHCP",
        "cable:\n  address: 192.168.1.20/24\n  gateway: 192.168.1.1\n  dns: [192.168.1.1]",
    ),
    _Section(
        "wifi",
        "Wireless network\n"
        "  # Where each user has a login (WPA-Enterprise), instead of password:\n"
        "  # login: {user: ..., password: '...', authority: '-----BEGIN CERTIFICATE-----...', server: radius.example}",
        "wifi:\n  ssid: plant\n  password: '...'\n  country: DE",
    ),
    _Section("lte", "Mobile network, over a USB modem", "lte:\n  apn: internet\n  pin: '1234'"),
    _Section("sshKeys", "Public keys for logins; without any, SSH is off", "sshKeys:\n- ssh-ed25519 AAAA... ann"),
    _Section(
        "hub",
        "Hub to forward to, and the token for one enrolment (waypost token create)\n"
        "  # Where a firewall allows only HTTPS, also failover: [wss://hub.example:443]\n"
        "  # Through a proxy, also proxy: {host: proxy.example, port: 3128, username: ..., password: '...'}",
        "hub:\n  url: amqps://hub.example:5671\n  token: wpt1...\n  forward: ['plant/#']",
    ),
    _Section("timeServers", "Time servers, instead of Debian's", "timeServers: [192.168.1.1]"),
    _Section(
        "data",
        "Space that messages leave free\n"
        "  # To keep the data on an empty disk next to the card, also disk: nvme, or usb",
        "data:\n  keepFree: 1Gi",
    ),
)


def document(name: str, spec: Mapping[str, Any]) -> Plain:
    """Return the resource."""
    return {"apiVersion": OWN_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": dict(spec)}


def text_of(wanted: Plain | None) -> str:
    """Return the text of a document; None: of an empty file, to be filled in."""
    if wanted is None:
        head = f"apiVersion: {OWN_VERSION}\nkind: {KIND}\nmetadata:\n  name: hall"
        parts = [_HEAD, _commented(f"{head}\nspec:")]
    else:
        parts = [_HEAD, to_yaml({key: value for key, value in wanted.items() if key != "spec"}), "spec:\n"]
    spec = {} if wanted is None else wanted.get("spec") or {}
    parts += [_section(each, spec) for each in _SECTIONS]
    if wanted is not None and not spec:
        parts[2] = "spec: {}\n"
    return "".join(parts)


def without_secrets(given: Plain) -> Plain:
    """Return a copy with `PLACEHOLDER` for each secret."""
    shown = copy.deepcopy(given)
    for *outer, key in SECRETS:
        part = shown.get("spec")
        for name in outer:
            part = part.get(name) if isinstance(part, dict) else None
        if isinstance(part, dict) and key in part:
            part[key] = PLACEHOLDER
    return shown


def _section(section: _Section, spec: Mapping[str, Any]) -> str:
    comment = f"\n  # {section.comment}\n"
    if section.key not in spec:
        return comment + _commented(_indented(section.example))
    return comment + _indented(to_yaml({section.key: spec[section.key]})) + "\n"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.rstrip("\n").split("\n"))


def _commented(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.split("\n"))
