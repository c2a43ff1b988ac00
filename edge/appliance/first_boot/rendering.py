"""Configuration files from a card's settings, without I/O.

They are for systemd-networkd, -resolved and -timesyncd, wpa_supplicant and NetworkManager.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from edge.card.resource import Cable, Card, Lte, Wifi, WifiLogin

CABLE: Final = "run/systemd/network/10-waypost-cable.network"
WIFI: Final = "run/waypost-settings/wpa_supplicant.conf"
WIFI_AUTHORITY: Final = "run/waypost-settings/wifi-authority.pem"
WIFI_CERTIFICATE: Final = "run/waypost-settings/wifi-certificate.pem"
WIFI_KEY: Final = "run/waypost-settings/wifi-key.pem"
LTE: Final = "run/NetworkManager/system-connections/waypost-lte.nmconnection"
TIME: Final = "run/systemd/timesyncd.conf.d/waypost.conf"
SSH: Final = "run/systemd/dnssd/waypost-ssh.dnssd"
ALL: Final = (CABLE, WIFI, WIFI_AUTHORITY, WIFI_CERTIFICATE, WIFI_KEY, LTE, TIME, SSH)
"""Paths below the root; files without a setting on the card are removed."""
CABLES: Final = "eth* end* enx* usb*"
MODEM_DRIVERS: Final = "cdc_ether rndis_host cdc_ncm huawei_cdc_ncm ipheth"
"""Drivers of modems that look like a cable's network card (15-modem.network of the system)."""
CABLE_METRIC: Final = 100
"""Metric of routes: the lowest is used first. The card's own files have that of the cable too, and 600 of Wi-Fi."""
LTE_METRIC: Final = 700
SAE_BOTH_WAYS: Final = 2
"""wpa_supplicant's sae_pwe: older access points derive the password element in a loop, newer ones by hashing."""
PROTECTED_IF_OFFERED: Final = 1
"""wpa_supplicant's ieee80211w."""
KEY_DIGITS: Final = 64
"""Hexadecimal digits of a key (PMK), which a password is too short for."""
NAMESPACE: Final = uuid.UUID("5b0f7c3e-41a5-5b2c-9a1e-6d1f0c8b7a21")
"""Namespace of the ids of connections."""


class File(NamedTuple):
    """File to write."""

    text: str
    mode: int


def files(card: Card) -> Mapping[str, File]:
    """Return the files by their paths below the root."""
    return dict(_files(card))


def _files(card: Card) -> Iterator[tuple[str, File]]:
    spec = card.spec
    if spec.cable is not None:
        yield CABLE, File(_cable(spec.cable), 0o644)
    if spec.wifi is not None:
        yield WIFI, File(_wifi(spec.wifi), 0o600)
        login = spec.wifi.login
        if login is not None:
            yield WIFI_AUTHORITY, File(login.authority, 0o644)
        if login is not None and login.certificate is not None and login.key is not None:
            yield WIFI_CERTIFICATE, File(login.certificate, 0o644)
            yield WIFI_KEY, File(login.key, 0o600)
    if spec.lte is not None:
        yield LTE, File(_lte(spec.lte), 0o600)
    if spec.time_servers:
        yield TIME, File(f"[Time]\nNTP={' '.join(spec.time_servers)}\n", 0o644)
    if spec.ssh_keys:
        yield SSH, File("[Service]\nName=%H\nType=_ssh._tcp\nPort=22\n", 0o644)


def _cable(cable: Cable) -> str:
    # `!` at the beginning inverts the whole list (systemd.network(5)).
    lines = ["[Match]", f"Name={CABLES}", f"Driver=!{MODEM_DRIVERS}", "", "[Network]", f"Address={cable.address}"]
    lines += [f"DNS={each}" for each in cable.dns]
    lines += ["LinkLocalAddressing=ipv6", "MulticastDNS=yes"]
    if cable.gateway is not None:
        lines += ["", "[Route]", f"Gateway={cable.gateway}", f"Metric={CABLE_METRIC}"]
    return "\n".join([*lines, "", "[IPv6AcceptRA]", f"RouteMetric={CABLE_METRIC}", ""])


def _wifi(wifi: Wifi) -> str:
    """Write SSID, key and password as hexadecimal digits, so that no character of them has a meaning there.

    WPA2 takes the key that IEEE 802.11 derives from the password, WPA3 (SAE) the password itself, so the key
    alone allows WPA2 only. An access point offers some of them, or logins of users (EAP); SAE demands protected
    management frames, which the others may have too (ieee80211w).
    """
    name = wifi.ssid.encode()
    lines = ["ctrl_interface=/run/wpa_supplicant", f"country={wifi.country}", f"sae_pwe={SAE_BOTH_WAYS}"]
    lines += ["network={", f"\tssid={name.hex()}"]
    ways: list[str] = []
    if wifi.password is not None and len(wifi.password) == KEY_DIGITS:  # SAE needs the password itself
        lines += [f"\tpsk={wifi.password}"]
        ways += ["WPA-PSK", "WPA-PSK-SHA256"]
    elif wifi.password is not None:
        password = wifi.password.encode()
        key = hashlib.pbkdf2_hmac("sha1", password, name, 4096, 32)
        lines += [f"\tpsk={key.hex()}", f"\tsae_password={password.hex()}"]
        ways += ["SAE", "WPA-PSK", "WPA-PSK-SHA256"]
    if wifi.login is not None:
        lines += _login(wifi.login)
        ways += ["WPA-EAP", "WPA-EAP-SHA256"]
    lines += [f"\tkey_mgmt={' '.join(ways) or 'NONE'}"]
    lines += [f"\tieee80211w={PROTECTED_IF_OFFERED}"] if ways else []
    return "\n".join([*lines, "\tscan_ssid=1", "}", ""])


def _login(login: WifiLogin) -> Iterator[str]:
    """Yield the lines of a login. The login server chooses among the methods.

    Times of certificates are not checked: before it is connected, a gateway without a clock of its own only knows that
    it is later than its image.
    """
    methods = []
    if login.certificate is not None:
        methods.append("TLS")
        yield f'\tclient_cert="/{WIFI_CERTIFICATE}"'
        yield f'\tprivate_key="/{WIFI_KEY}"'
    if login.password is not None:
        methods.append("PEAP")
        yield f"\tpassword={login.password.encode().hex()}"
        yield '\tphase2="auth=MSCHAPV2"'
    yield f"\teap={' '.join(methods)}"
    yield f"\tidentity={login.user.encode().hex()}"
    yield f'\tca_cert="/{WIFI_AUTHORITY}"'
    yield '\tphase1="tls_disable_time_checks=1"'
    if login.server is not None:
        yield f"\tdomain_suffix_match={login.server.encode().hex()}"


def _lte(lte: Lte) -> str:
    """Return a keyfile (nm-settings-keyfile(5)); values have no line breaks and no spaces at their ends."""
    identity = uuid.uuid5(NAMESPACE, lte.apn)
    lines = ["[connection]", "id=waypost-lte", f"uuid={identity}", "type=gsm", "autoconnect=true", "", "[gsm]"]
    values = {"apn": lte.apn, "username": lte.user, "password": lte.password, "pin": lte.pin}
    lines += [f"{name}={_escaped(value)}" for name, value in values.items() if value is not None]
    for family in ("ipv4", "ipv6"):
        lines += ["", f"[{family}]", "method=auto", f"route-metric={LTE_METRIC}"]
    return "\n".join([*lines, ""])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\")
