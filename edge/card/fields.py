"""Checks of values in a card's file. Each function returns the value or raises `ValueError`, which quotes no secret."""

from __future__ import annotations

import base64
import ipaddress
import re
import unicodedata
from typing import Final, NamedTuple

from bridge.enrolment import EnrolmentToken
from bridge.resources.endpoint import valid_host
from bridge.resources.values import HubUrl
from bridge.topic_filter import filter_fault
from edge.card.countries import country_fault

PLACEHOLDER: Final = "(secret)"
"""Replacement of a secret in a file that is shown, and in the copy that stays on the card."""
SSH_TYPES: Final = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-", "sk-ssh-ed25519@", "sk-ecdsa-sha2-")
_THIS_NETWORK: Final = ipaddress.ip_network("0.0.0.0/8")
"""Addresses that no machine has (RFC 6890)."""

NOT_PRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs"})
"""Categories of Unicode that are not printable, apart from the space."""


class TextRule(NamedTuple):
    """Pattern of a text. The settings page has the same patterns, so they mean the same in Python and JavaScript."""

    pattern: str
    """Regular expression for all of the text."""
    words: str
    """Reason when it does not match; `{value}` is the text, and secrets leave it out."""

    def require(self, value: str) -> str:
        """Return a text that matches. Raises ValueError with the reason."""
        if not re.fullmatch(self.pattern, value):
            raise ValueError(self.words.replace("{value}", value))
        return value


HOST_NAME: Final = TextRule(
    "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
    '"{value}" is not a host name: 1 to 63 of a-z, 0-9 and -, with no - at either end',
)
PASSPHRASE: Final = TextRule(
    "[ -~]{8,63}|[0-9a-fA-F]{64}",
    "the password of a wireless network is 8 to 63 printable ASCII characters, or its key of 64 hexadecimal digits",
)
COUNTRY: Final = TextRule("[A-Z]{2}", '"{value}" is not a country: two capital letters, for example DE')
ACCESS_POINT: Final = TextRule(
    "[A-Za-z0-9]([A-Za-z0-9.-]{0,98}[A-Za-z0-9])?",
    '"{value}" is not an access point name (APN): at most 100 letters, digits, dots and dashes',
)
PIN: Final = TextRule("[0-9]{4,8}", "a PIN is 4 to 8 digits")
WORD: Final = TextRule("[!-~]{1,64}", "it must be 1 to 64 printable ASCII characters without spaces")
DISK_KIND: Final = TextRule("nvme|usb", '"{value}" is not a kind of disk: nvme or usb')
TIME_SERVER: Final = TextRule("[A-Za-z0-9.:_-]+", '"{value}" is not a time server: give a host name or an address')
_LINES: Final = "[ \t\r\n]*"
_BASE64: Final = "[A-Za-z0-9+/= \t\r\n]+"
WIFI_USER: Final = TextRule("[ -~]{1,253}", "the user of a wireless network is 1 to 253 printable ASCII characters")
LOGIN_PASSWORD: Final = TextRule("[ -~]{1,256}", "the password of a user is 1 to 256 printable ASCII characters")
CERTIFICATE: Final = TextRule(
    f"(?:{_LINES}-----BEGIN CERTIFICATE-----{_BASE64}-----END CERTIFICATE-----)+{_LINES}",
    "this is not a certificate in PEM: it begins with -----BEGIN CERTIFICATE-----, and nothing else is with it",
)
PRIVATE_KEY: Final = TextRule(
    f"{_LINES}-----BEGIN (?:RSA |EC )?PRIVATE KEY-----{_BASE64}-----END (?:RSA |EC )?PRIVATE KEY-----{_LINES}",
    "this is not a private key in PEM without a passphrase: openssl pkey -in key.pem writes one",
)
SSID_BYTES_MAX: Final = 32
"""Longest name of a wireless network (IEEE 802.11)."""


def host_name(value: str) -> str:
    """Check the name of a machine (RFC 1123, one label)."""
    return HOST_NAME.require(value)


def interface(value: str) -> str:
    """Check an address with the prefix length of its network."""
    if "/" not in value:
        raise ValueError(f'"{value}" has no prefix length; for example 192.168.1.20/24')
    try:
        found = ipaddress.ip_interface(value)
    except ValueError:
        raise ValueError(f'"{value}" is not an address with a prefix length; for example 192.168.1.20/24') from None
    if found.network.prefixlen < found.max_prefixlen - 1 and found.ip in (
        found.network.network_address,
        found.network.broadcast_address,
    ):
        raise ValueError(f'"{value}" is a network or broadcast address, not the address of a machine')
    return value


def machine(value: str) -> str:
    """Check that an address with a prefix length can be one of a machine."""
    found = ipaddress.ip_interface(value).ip
    if found.is_loopback or found.is_multicast or found.is_unspecified or found in _THIS_NETWORK:
        raise ValueError(f'"{value}" cannot be the address of a machine on a network')
    return value


def address(value: str) -> str:
    """Check an IP address."""
    try:
        ipaddress.ip_address(value)
    except ValueError:
        raise ValueError(f'"{value}" is not an IP address') from None
    return value


def network_name(value: str) -> str:
    """Check the name of a wireless network (SSID): at most 32 bytes."""
    if not 1 <= len(value.encode()) <= SSID_BYTES_MAX or not _printable(value):
        raise ValueError("the name of a wireless network (SSID) is 1 to 32 printable bytes")
    return value


def passphrase(value: str) -> str:
    """Check the password of a wireless network (WPA2, WPA3), or the key that WPA2 derives from it."""
    return PASSPHRASE.require(secret(value))


def wifi_user(value: str) -> str:
    """Check the name of a user at a wireless network (WPA-Enterprise)."""
    return WIFI_USER.require(value)


def login_password(value: str) -> str:
    """Check the password of such a user."""
    return LOGIN_PASSWORD.require(secret(value))


def certificate(value: str) -> str:
    """Check one or several certificates in PEM."""
    return CERTIFICATE.require(value)


def private_key(value: str) -> str:
    """Check a private key in PEM."""
    return PRIVATE_KEY.require(secret(value))


def country(value: str) -> str:
    """Check that this has the form of an ISO 3166 code: two capital letters."""
    if not re.fullmatch(COUNTRY.pattern, value) and (fault := country_fault(value)):
        raise ValueError(fault)
    return COUNTRY.require(value)


def country_with_rules(value: str) -> str:
    """Check that the kernel knows the rules for wireless networks of this country."""
    if fault := country_fault(value):
        raise ValueError(fault)
    return value


def access_point(value: str) -> str:
    """Check the access point name of a mobile network (APN, 3GPP TS 23.003 section 9.1)."""
    return ACCESS_POINT.require(value)


def pin(value: str) -> str:
    """Check the PIN of a SIM card."""
    return PIN.require(secret(value))


def word(value: str) -> str:
    """Check a user name or password of a mobile network, which has to fit on one line of a file."""
    return WORD.require(secret(value))


def disk_kind(value: str) -> str:
    """Check the kind of a disk, as lsblk(8) names its transport."""
    return DISK_KIND.require(value)


def secret(value: str) -> str:
    """Check that this is a secret, and not its placeholder."""
    if value == PLACEHOLDER:
        raise ValueError(f"{PLACEHOLDER} is the placeholder of a secret: write the secret itself")
    return value


def ssh_key(value: str) -> str:
    """Check a public key: a line of ``authorized_keys`` without options."""
    kind, _, rest = value.strip().partition(" ")
    if "PRIVATE KEY" in value:
        raise ValueError("this is a private key: give the public one, from the file that ends in .pub")
    try:
        content = base64.b64decode(rest.split(" ")[0], validate=True)
    except ValueError:  # not Base64, or not even ASCII
        content = b""
    if not kind.startswith(SSH_TYPES) or not _printable(value) or kind.encode() not in content[:64]:
        raise ValueError("this is not a public key for SSH: one line that starts with ssh-ed25519, for example")
    return value.strip()


def hub_url(value: str) -> str:
    """Check the URL of a hub at which a gateway enrols: TLS only."""
    if not HubUrl.parse(value).secure:
        raise ValueError(f'"{value}" is without TLS, which enrolment needs: amqps://HOST:PORT, or wss://HOST:PORT')
    return value


def reachable_hub(value: str) -> str:
    """Check that the port of a hub's URL is not 0."""
    if HubUrl.parse(value).endpoint.port == 0:
        raise ValueError(f'"{value}": port 0 is not valid; the default port of a hub is 5671')
    return value


def token(value: str) -> str:
    """Check an enrolment token."""
    secret(value)
    return EnrolmentToken.parse(value).text


def server(value: str) -> str:
    """Check the name or address of a time server."""
    if not _printable(value):
        raise ValueError("a time server is a host name or an address")
    return valid_host(value)


def time_server(value: str) -> str:
    """Check that the characters of a time server are those of a host name or an address."""
    return TIME_SERVER.require(value)


def topic_filter(value: str) -> str:
    """Check a filter of topics to forward."""
    fault = filter_fault(value)
    # In file names a trailing asterisk matches everything below; here it would match nothing.
    if not fault and value.endswith("*"):
        fault = f'"{value}": wildcards are + and #'
    if fault:
        raise ValueError(fault)
    return value


def _printable(value: str) -> bool:
    """Return True without control characters and line ends. Characters that this Python's edition of Unicode does not
    know yet are allowed: the browser that made the file may have a newer one."""
    return all(each == " " or unicodedata.category(each) not in NOT_PRINTABLE for each in value)
