"""The file on a card as text: every setting with a comment, those that are not made as an example to fill in."""

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
    ("lte", "password"),
    ("lte", "pin"),
    ("hub", "token"),
    ("hub", "proxy", "password"),
)
"""Ways to them in `spec`."""

_HEAD: Final = """\
# Settings of a Waypost gateway. It reads this file when it starts, once; then only a copy without secrets stays here.
# A line that begins with # says nothing: take the # away where you fill something in. Indentation counts.
# Check it on a laptop: waypost image configure --check waypost.yaml
"""


class _Section(NamedTuple):
    """A key of `spec`: what it is for, and what one may write."""

    key: str
    comment: str
    example: str


_SECTIONS: Final = (
    _Section("hostname", "Name of the machine, where it is not the gateway's", "hostname: hall"),
    _Section(
        "cable",
        "A fixed address on the cable; without it DHCP",
        "cable:\n  address: 192.168.1.20/24\n  gateway: 192.168.1.1\n  dns: [192.168.1.1]",
    ),
    _Section("wifi", "A wireless network", "wifi:\n  ssid: plant\n  password: '...'\n  country: DE"),
    _Section("lte", "A mobile network, over a modem on USB", "lte:\n  apn: internet\n  pin: '1234'"),
    _Section(
        "sshKeys", "Who may log in (public keys); without any there is no SSH", "sshKeys:\n- ssh-ed25519 AAAA... ann"
    ),
    _Section(
        "hub",
        "Where messages go, and the token that lets this gateway in there once (waypost fleet token create)\n"
        "  # Where only HTTPS is let out, also failover: [wss://hub.example:443]\n"
        "  # Through a proxy, also proxy: {host: proxy.example, port: 3128, username: ..., password: '...'}",
        "hub:\n  url: amqps://hub.example:5671\n  token: wpt1...\n  forward: ['plant/#']",
    ),
    _Section("timeServers", "Who knows the time, in place of Debian's servers", "timeServers: [192.168.1.1]"),
    _Section("data", "So much of the card messages leave free", "data:\n  keepFree: 1Gi"),
)


def document(name: str, spec: Mapping[str, Any]) -> Plain:
    """The resource."""
    return {"apiVersion": OWN_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": dict(spec)}


def text_of(wanted: Plain | None) -> str:
    """A file of this document; None: one that says nothing, to be filled in."""
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
    """The same with `PLACEHOLDER` for each secret."""
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
