"""Settings that Raspberry Pi Imager writes onto a card: host name, Wi-Fi and SSH keys.

Imager writes files of cloud-init for an image with ``"init_format": "cloudinit"``. They are read as data, and only
these values: commands, packages, users and passwords in them have no effect.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import yaml

from bridge.hidden import hides
from bridge.resources.errors import ConfigurationError, ConfigurationRejected
from edge.card.resource import FILE_BYTES_MAX, Plain
from edge.card.text import document

USER: Final = "user-data"
NETWORK: Final = "network-config"
INSTANCE: Final = "meta-data"
KERNEL: Final = "cmdline.txt"
"""Words for the kernel; Imager adds the country of the wireless network."""
SCRIPT: Final = "firstrun.sh"
"""Script that Imager writes for other images. It is not run."""
DEFAULT_NAME: Final = "waypost"
"""Name of a gateway for which Imager sets no host name."""
DEPTH_MAX: Final = 32
"""Lists and mappings inside each other. Imager nests 7; the time to parse grows with the square of the depth, and
20 000 take 40 s on a PC."""
_COUNTRY: Final = re.compile(rb"\bcfg80211\.ieee80211_regdom=([A-Za-z]{2})\b")


@hides("spec")
class ImagerSettings(NamedTuple):
    """Settings in Imager's files."""

    name: str | None
    spec: Mapping[str, Any]
    ignored: tuple[str, ...]
    """Names of settings that a gateway does not have."""


def read_imager(user: bytes, network: bytes, kernel: bytes) -> ImagerSettings:
    """Return the settings in the content of Imager's files, empty for missing ones. Raises ConfigurationRejected."""
    given, networks = _load(user, USER), _load(network, NETWORK)
    account = _mapping(given.get("user"))
    for each in _items(given.get("users")):  # written by Imager 1
        account = {**_mapping(each), **account}
    spec: dict[str, Any] = {}
    keys = [key for each in (account, given) for key in _items(each.get("ssh_authorized_keys")) if isinstance(key, str)]
    if keys:
        spec["sshKeys"] = keys
    country = _COUNTRY.search(kernel)
    if wifi := _wifi(_mapping(networks.get("network")) or networks, country[1].decode().upper() if country else None):
        spec["wifi"] = wifi
    name = given.get("hostname")
    return ImagerSettings(name.lower() if isinstance(name, str) and name else None, spec, _ignored(given, account))


def merge_into(draft: Plain | None, found: ImagerSettings) -> Plain:
    """Return a document of settings with those of Imager where it has none."""
    merged = copy.deepcopy(draft) if draft is not None else document(found.name or DEFAULT_NAME, {})
    if not isinstance(merged.get("spec"), dict | None):
        return merged  # an error, which is reported when it is read
    merged["spec"] = {**found.spec, **(merged.get("spec") or {})}
    return merged


def _load(content: bytes, source: str) -> Plain:
    """Return a file's mapping with all scalars as text. Raises ConfigurationRejected."""
    if len(content) > FILE_BYTES_MAX:
        raise ConfigurationRejected([ConfigurationError(source, 0, "", f"larger than {FILE_BYTES_MAX} bytes")])
    try:
        _check_events(content, source)
        found = yaml.load(content, Loader=yaml.BaseLoader)  # noqa: S506 - it makes texts, lists and mappings only
    except (yaml.YAMLError, UnicodeDecodeError) as why:
        words = f"not YAML as Raspberry Pi Imager writes it: {' '.join(str(why).split())}"
        raise ConfigurationRejected([ConfigurationError(source, 0, "", words)]) from None
    return _mapping(found)


def _check_events(content: bytes, source: str) -> None:
    """Raise ConfigurationRejected for what would take much memory or time, and what Imager does not write."""
    depth = 0
    for event in yaml.parse(content, Loader=yaml.BaseLoader):
        if isinstance(event, yaml.AliasEvent):  # a kilobyte could become a gigabyte
            words = "it has aliases, which Raspberry Pi Imager does not write"
            raise ConfigurationRejected([ConfigurationError(source, 0, "", words)])
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX:
            words = f"lists and mappings are nested more than {DEPTH_MAX} deep; Raspberry Pi Imager nests 7"
            line = event.start_mark.line + 1 if event.start_mark is not None else 0
            raise ConfigurationRejected([ConfigurationError(source, line, "", words)])


def _wifi(networks: Plain, country: str | None) -> dict[str, str]:
    """Return the first wireless network (netplan's format)."""
    for part in _mapping(networks.get("wifis")).values():
        for ssid, point in _mapping(_mapping(part).get("access-points")).items():
            domain = _mapping(part).get("regulatory-domain") or country
            password = _mapping(point).get("password") or _mapping(_mapping(point).get("auth")).get("password")
            values = {"ssid": _ssid(ssid), "password": password, "country": domain}
            return {key: value for key, value in values.items() if isinstance(value, str)}
    return {}


def _ssid(text: str) -> str:
    """Return the name of a network; Imager 2 escapes each byte of its UTF-8 as if it were a character."""
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text


def _ignored(given: Plain, account: Plain) -> tuple[str, ...]:
    names = {"time zone": given.get("timezone"), "keyboard": given.get("keyboard")}
    names |= {"password of the user": account.get("passwd"), "Raspberry Pi Connect": _connects(given)}
    return tuple(name for name, value in names.items() if value)


def _connects(given: Plain) -> bool:
    return "rpi-connect" in str(given.get("runcmd", ""))


def _mapping(value: object) -> Plain:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
