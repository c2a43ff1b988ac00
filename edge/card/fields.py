"""Values of a card's file that have rules of their own. Each function raises `ValueError`, which quotes no secret."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from typing import Final

from bridge.enrolment import EnrolmentToken
from bridge.resources.endpoint import valid_host
from bridge.resources.values import HubUrl
from bridge.topic_filter import filter_fault
from edge.card.countries import country_fault

PLACEHOLDER: Final = "(secret)"
"""In the place of a secret where a file is shown, and in the one that stays on the card."""
SSH_TYPES: Final = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-", "sk-ssh-ed25519@", "sk-ecdsa-sha2-")
_THIS_NETWORK: Final = ipaddress.ip_network("0.0.0.0/8")
"""Of no machine (RFC 6890)."""
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def host_name(value: str) -> str:
    """A machine's own name (RFC 1123, one label)."""
    if not _LABEL.fullmatch(value):
        raise ValueError(f'"{value}" is no host name: 1 to 63 of a-z, 0-9 and -, no - at either end')
    return value


def interface(value: str) -> str:
    """An address with the length of its network's prefix."""
    if "/" not in value:
        raise ValueError(f'"{value}" has no prefix length; for example 192.168.1.20/24')
    try:
        found = ipaddress.ip_interface(value)
    except ValueError:
        raise ValueError(f'"{value}" is no address with a prefix length; for example 192.168.1.20/24') from None
    if found.network.prefixlen < found.max_prefixlen - 1 and found.ip in (
        found.network.network_address,
        found.network.broadcast_address,
    ):
        raise ValueError(f'"{value}" is the address of a network or of everybody in it, not of one machine')
    return value


def machine(value: str) -> str:
    """The same, of one that a machine can have on a network."""
    found = ipaddress.ip_interface(value).ip
    if found.is_loopback or found.is_multicast or found.is_unspecified or found in _THIS_NETWORK:
        raise ValueError(f'"{value}" is no address that a machine has on a network')
    return value


def address(value: str) -> str:
    """An IP address."""
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError(f'"{value}" is no IP address') from None


def network_name(value: str) -> str:
    """Of a wireless network (SSID): 32 bytes at most."""
    if not 1 <= len(value.encode()) <= 32 or not value.isprintable():
        raise ValueError("the name of a wireless network (SSID) is 1 to 32 printable bytes")
    return value


def passphrase(value: str) -> str:
    """Of a wireless network (WPA2, WPA3): 8 to 63 printable ASCII characters."""
    secret(value)
    if not re.fullmatch(r"[ -~]{8,63}", value):
        raise ValueError("the password of a wireless network is 8 to 63 printable ASCII characters")
    return value


def country(value: str) -> str:
    """Check that this has the form of an ISO 3166 code: two capital letters."""
    if not re.fullmatch(r"[A-Z]{2}", value):
        raise ValueError(country_fault(value) or f'"{value}" is not a country: two capital letters, for example DE')
    return value


def country_with_rules(value: str) -> str:
    """Check that the kernel knows the rules for wireless networks of this country."""
    if fault := country_fault(value):
        raise ValueError(fault)
    return value


def access_point(value: str) -> str:
    """Of a mobile network (APN, 3GPP TS 23.003 section 9.1)."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,98}[A-Za-z0-9])?", value):
        raise ValueError(f'"{value}" is no access point name (APN): letters, digits, dots and dashes, 100 at most')
    return value


def pin(value: str) -> str:
    """Of a SIM card."""
    secret(value)
    if not re.fullmatch(r"\d{4,8}", value):
        raise ValueError("a PIN is 4 to 8 digits")
    return value


def word(value: str) -> str:
    """A user's name or password for a mobile network: what fits on one line of a file."""
    secret(value)
    if not re.fullmatch(r"[!-~]{1,64}", value):
        raise ValueError("1 to 64 printable ASCII characters without spaces are wanted")
    return value


def secret(value: str) -> str:
    """Anything but what stands for it."""
    if value == PLACEHOLDER:
        raise ValueError(f"{PLACEHOLDER} stands for a secret that is not shown: write the secret itself")
    return value


def ssh_key(value: str) -> str:
    """A public key, a line of ``authorized_keys`` without options."""
    kind, _, rest = value.strip().partition(" ")
    if "PRIVATE KEY" in value:
        raise ValueError("this is a private key: give the public one, from the file that ends in .pub")
    try:
        content = base64.b64decode(rest.split(" ")[0], validate=True)
    except binascii.Error:
        content = b""
    if not kind.startswith(SSH_TYPES) or not value.isprintable() or kind.encode() not in content[:64]:
        raise ValueError("this is no public key for SSH; one begins with ssh-ed25519, for example, and is one line")
    return value.strip()


def hub_url(value: str) -> str:
    """Where gateways enrol: TLS only."""
    if not HubUrl.parse(value).secure:
        raise ValueError(f'"{value}" is without TLS, and nobody enrols there: amqps://HOST:PORT, or wss://HOST:PORT')
    return value


def reachable_hub(value: str) -> str:
    """The same, at a port that somebody can listen at."""
    if HubUrl.parse(value).endpoint.port == 0:
        raise ValueError(f'"{value}": nobody listens at port 0; a hub does at 5671 unless it was told another one')
    return value


def token(value: str) -> str:
    """For an enrolment."""
    secret(value)
    return EnrolmentToken.parse(value).text


def server(value: str) -> str:
    """A time server's name or address."""
    if not value.isprintable():
        raise ValueError("a time server is a host's name or its address")
    return valid_host(value)


def time_server(value: str) -> str:
    """The same, of characters that are in one."""
    if not re.fullmatch(r"[A-Za-z0-9.:_-]+", value):
        raise ValueError(f'"{value}" is no time server: a host\'s name or its address is wanted')
    return value


def topic_filter(value: str) -> str:
    """What goes to the hub."""
    fault = filter_fault(value)
    # For files a trailing asterisk means everything below; here it would match nothing, and nothing would go there.
    if not fault and value.endswith("*"):
        fault = f'"{value}": wildcards are + and #'
    if fault:
        raise ValueError(fault)
    return value
