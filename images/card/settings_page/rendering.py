"""The page as one file of HTML: form, style, rules and script, which its content policy names by their hashes."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from pathlib import Path
from typing import Final, NamedTuple

from bridge.version import VERSION
from edge.card.location import FILE
from images.card.settings_page.rules import LINES, PageField, list_fields, make_rules

HERE: Final = Path(__file__).parent
PAGE: Final = "settings.html"
"""Name of the page's file, on a card too."""


class PageInput(NamedTuple):
    """Label and hint of an input."""

    name: str
    label: str
    hint: str


class PageSection(NamedTuple):
    """Group of inputs; `open` ones are for every gateway."""

    title: str
    open: bool
    inputs: tuple[PageInput, ...]


SECTIONS: Final = (
    PageSection("Gateway", True, (
        PageInput("name", "Name", "Unique at its hub, for example hall"),
        PageInput("hostname", "Host name", "By default the name"),
    )),
    PageSection("Hub", True, (
        PageInput("hub.url", "Address of the hub", "For example amqps://hub.example:5671"),
        PageInput("hub.token", "Token", "From the hub: waypost token create"),
        PageInput("hub.forward", "Topics to forward", "One filter a line; by default all (#)"),
        PageInput("hub.failover", "More addresses of this hub", "One a line, for example wss://hub.example:443"),
    )),
    PageSection("Wi-Fi", True, (
        PageInput("wifi.ssid", "Network name (SSID)", "Upper and lower case matter"),
        PageInput("wifi.password", "Wi-Fi password", "None for an open network"),
        PageInput("wifi.country", "Country", "Two letters of ISO 3166, for example DE or US"),
    )),
    PageSection("Login at a Wi-Fi with users (WPA-Enterprise)", False, (
        PageInput("wifi.login.user", "User at the Wi-Fi", "For example gateway7@plant.example"),
        PageInput("wifi.login.password", "Password of the user", "Or a certificate with its key"),
        PageInput("wifi.login.authority", "Certificate of the authority", "PEM, of the login server's authority"),
        PageInput("wifi.login.server", "Name of the login server", "As in its certificate, or its domain"),
        PageInput("wifi.login.certificate", "Certificate of the user", "PEM, instead of a password"),
        PageInput("wifi.login.key", "Private key of the user", "PEM, without a passphrase"),
    )),
    PageSection("Logins", True, (
        PageInput("sshKeys", "Public SSH keys", "One a line; without any, SSH is off"),
    )),
    PageSection("Fixed address of the wired network", False, (
        PageInput("cable.address", "Address and prefix length", "For example 192.168.1.20/24; by default DHCP"),
        PageInput("cable.gateway", "Router", "For example 192.168.1.1"),
        PageInput("cable.dns", "Name servers", "One address a line"),
    )),
    PageSection("Mobile network", False, (
        PageInput("lte.apn", "Access point name (APN)", "From the operator, for example internet"),
        PageInput("lte.user", "User of the access point", "Only if the operator names one"),
        PageInput("lte.password", "Password of the access point", ""),
        PageInput("lte.pin", "PIN of the SIM card", "4 to 8 digits"),
    )),
    PageSection("Proxy to the hub", False, (
        PageInput("hub.proxy.host", "Host of the proxy", "For example proxy.example"),
        PageInput("hub.proxy.port", "Port of the proxy", "By default 3128"),
        PageInput("hub.proxy.username", "User at the proxy", ""),
        PageInput("hub.proxy.password", "Password at the proxy", ""),
    )),
    PageSection("Clock and space", False, (
        PageInput("timeServers", "Time servers", "One a line, instead of Debian's"),
        PageInput("data.disk", "Disk for the data", "nvme or usb: an empty disk; by default the card"),
        PageInput("data.keepFree", "Space that messages leave free", "For example 1Gi: the card lasts longer"),
    )),
)  # fmt: skip


def render_page() -> str:
    """Return the page."""
    fields = {field.name: field for field in list_fields()}
    style = (HERE / "page.css").read_text(encoding="utf-8")
    rules = json.dumps(make_rules(), separators=(",", ":")).replace("<", "\\u003c")  # no end of the script
    script = f"const RULES = {rules};\n" + "".join(
        (HERE / name).read_text(encoding="utf-8") for name in ("checks.js", "form.js")
    )
    parts = {
        "POLICY": make_policy(script, style),
        "STYLE": style,
        "FILE": FILE,
        "VERSION": VERSION,
        "SECTIONS": "\n".join(_render_section(section, fields) for section in SECTIONS),
        "SCRIPT": script,
    }
    page = (HERE / "page.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        page = page.replace(f"@{name}@", text)
    return page


def make_policy(script: str, style: str) -> str:
    """Return a content policy that admits this script and this style, and no request, form or frame."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "form-action 'none'; base-uri 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _render_section(section: PageSection, fields: dict[str, PageField]) -> str:
    shown = "\n".join(_render_input(each, fields[each.name]) for each in section.inputs)
    title = html.escape(section.title)
    if section.open:
        return f"<fieldset><legend>{title}</legend>\n{shown}\n</fieldset>"
    return f"<details><summary>{title}</summary>\n{shown}\n</details>"


def _render_input(given: PageInput, field: PageField) -> str:
    name = given.name
    plain = 'spellcheck="false" autocapitalize="none" autocomplete="off"'
    common = f'id="{name}" aria-describedby="{name}-hint {name}-fault" {plain}'
    if field.many or field.check in LINES:
        hidden = ' class="secret"' if field.secret else ""
        control = f'<textarea {common}{hidden} rows="2"></textarea>'
    else:
        control = f'<input {common} type="{"password" if field.secret else "text"}">'
    label = f'<label for="{name}">{html.escape(given.label)}</label>'
    return (
        f'{label}\n<p class="hint" id="{name}-hint">{html.escape(given.hint)}</p>\n{control}\n'
        f'<p class="fault" id="{name}-fault"></p>'
    )
