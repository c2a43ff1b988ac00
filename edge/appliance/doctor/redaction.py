"""Removal of secrets from the texts of a support archive.

Known secrets (of the configuration and of key files) are replaced wherever they occur, plain or in base64. Then
everything that looks like a secret is replaced too.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from edge.broker.configuration import BrokerConfiguration

REDACTED: Final = "[redacted]"
SECRET_CHARACTERS_MIN: Final = 3
"""Length from which a known secret is replaced: a shorter one would match parts of ordinary words."""

SECRET_NAME: Final = re.compile(
    r"pass(word|wd|phrase|code)?(_?hash)?$|secret|token|private|credential|api_?key|client_?key$|authorization|cookie|"
    r"argon2|salt|stored_?key|server_?key|assertion|sas(key)?$|connection_?string|"
    r"shared_?access_?key",
    re.IGNORECASE,
)
"""Names of keys with values that are not shown. Paths of key files are shown."""

_PATTERNS: Final = (
    # a PEM key, also one cut off at the end of a log
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), REDACTED),
    # user:password@ in a URL; bounded, so that the time for a long line is linear
    (re.compile(r"([A-Za-z][\w+.-]{0,20}://[^\s/:@]{0,200}:)[^\s/@]+@"), rf"\1{REDACTED}@"),
    # JSON web tokens and bearer tokens
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]+\.[\w-]*"), REDACTED),
    (re.compile(r"\b(bearer|basic|negotiate)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {REDACTED}"),
    # hashes of passwords
    (re.compile(r"\$(argon2\w*|scrypt|2[aby]|[67]|pbkdf2[\w-]*)\$[^\s\"']+"), REDACTED),
    # name: value, name=value, "name": "value"
    (
        re.compile(
            r"""(?P<name>(?:password|passwd|passphrase|passcode|secret|token|cookie|assertion|api[_-]?key|private[_-]?key|authorization|"""
            r"""sharedaccesskey|\bsig)["']?\s{0,9}[:=]\s{0,9})(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\s,;&}\])]+)""",
            re.IGNORECASE,
        ),
        rf"\g<name>{REDACTED}",
    ),
)  # fmt: skip


def known_secrets(configuration: BrokerConfiguration, documents: Iterable[Mapping[str, Any]] = ()) -> set[str]:
    """Return all secret values of a configuration, and of resources as they were written."""
    found = {user.password for user in configuration.users if user.password}
    found |= {c.credentials.password for c in configuration.connectors if c.credentials is not None}
    found |= {secret for c in configuration.connectors if c.http is not None and (secret := c.http.signing_secret)}
    found |= {key for c in configuration.connectors if c.mqtt is not None and (key := c.mqtt.shared_access_key)}
    for document in documents:
        found |= set(_secret_values(document))
    return {secret for secret in found if secret}


def key_files(configuration: BrokerConfiguration) -> set[str]:
    """Return the paths of private keys."""
    paths = {connector.tls.key for connector in configuration.connectors if connector.tls is not None}
    if configuration.tls is not None:
        paths.add(configuration.tls.key)
    return {path for path in paths if path}


def _secret_values(document: Any) -> Iterable[str]:
    if isinstance(document, Mapping):
        for key, value in document.items():
            if isinstance(value, str) and SECRET_NAME.search(str(key)):
                yield value
            else:
                yield from _secret_values(value)
    elif isinstance(document, list):
        for item in document:
            yield from _secret_values(item)


class Redactor:
    """Remove secrets from texts and documents."""

    def __init__(self, secrets: Iterable[str] = (), keys: Iterable[str] = ()) -> None:
        """`keys`: files in which each line is a secret; unreadable files are skipped."""
        forms: set[str] = set()
        for secret in secrets:
            forms |= _forms(secret)
        for path in keys:
            try:
                lines = Path(path).read_text(encoding="ascii", errors="replace").splitlines()
            except OSError:
                continue
            forms |= {line.strip() for line in lines if line and not line.startswith("-----")}
        wanted = sorted((form for form in forms if len(form) >= SECRET_CHARACTERS_MIN), key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, wanted))) if wanted else None

    def text(self, text: str) -> str:
        """Return the text without secrets."""
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text

    def document(self, value: Any) -> Any:
        """Return a document (of maps, lists and scalars) without secrets."""
        if isinstance(value, Mapping):
            return {
                str(key): REDACTED if _hides(str(key), inner) else self.document(inner) for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.document(item) for item in value]
        return self.text(value) if isinstance(value, str) else value


def _hides(key: str, value: Any) -> bool:
    return bool(SECRET_NAME.search(key)) and not isinstance(value, Mapping | list | tuple) and value is not None


def _forms(secret: str) -> set[str]:
    """Return the forms of a secret in texts: plain, base64 with or without padding, quoted for a URL or JSON."""
    data = secret.encode("utf-8", "surrogatepass")
    encoded = base64.b64encode(data).decode()
    forms = {secret, encoded, encoded.rstrip("="), base64.urlsafe_b64encode(data).decode(), quote(secret, safe="")}
    forms.add(secret.encode("unicode_escape").decode())
    try:
        decoded = base64.b64decode(secret, validate=True).decode()  # resources have passwords in base64
    except ValueError:
        return forms
    return forms | {decoded} if len(decoded) >= SECRET_CHARACTERS_MIN else forms
