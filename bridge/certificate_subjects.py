"""Subjects of device certificates as text (RFC 4514), and the identifiers that templates make of them. Pure.

Hub and gateway use the same functions: the identifier that a gateway finds in a certificate is that of the registry.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from bridge.limits import AUTH_ID_CHARACTERS_MAX, DEVICE_CHARACTERS_MAX

WHOLE: Final = "{{subject-dn}}"
PLACEHOLDERS: Final[Mapping[str, x509.ObjectIdentifier]] = {
    "{{subject-cn}}": NameOID.COMMON_NAME,
    "{{subject-ou}}": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "{{subject-o}}": NameOID.ORGANIZATION_NAME,
}
_NO_ID: Final = re.compile(r"[^a-zA-Z0-9_.:=-]")
_PLACEHOLDER: Final = re.compile(r"\{\{[^{}]*\}\}")


class SubjectError(ValueError):
    """A subject or template has no usable identifier; the message says why."""


def placeholders_in(template: str) -> list[str]:
    """Return the placeholders of a template, also unknown ones."""
    return _PLACEHOLDER.findall(template)


def subject_text(subject: x509.Name, what: str) -> str:
    """Return a subject as text; `what` names its certificate in errors. Raises `SubjectError` for an empty or long
    one."""
    text = subject.rfc4514_string()
    if not 0 < len(text) <= AUTH_ID_CHARACTERS_MAX:
        raise SubjectError(f"the subject of {what} is empty, or longer than {AUTH_ID_CHARACTERS_MAX} characters")
    return text


def apply_template(template: str | None, subject: x509.Name) -> str:
    """Return the identifier that a template makes of a subject; without one it is the whole subject. Raises
    `SubjectError` if the subject lacks a part."""
    if template is None:
        return subject_text(subject, "the certificate")

    def value(found: re.Match[str]) -> str:
        if found[0] == WHOLE:
            return subject.rfc4514_string()
        oid = PLACEHOLDERS.get(found[0])
        parts = subject.get_attributes_for_oid(oid) if oid is not None else []
        if not parts:
            raise SubjectError(f"the subject of the certificate has nothing for {found[0]}")
        text = parts[0].value
        return text if isinstance(text, str) else text.decode("utf-8", "replace")

    made = _PLACEHOLDER.sub(value, template)
    if not 0 < len(made) <= AUTH_ID_CHARACTERS_MAX:
        raise SubjectError(f"the template makes an identifier longer than {AUTH_ID_CHARACTERS_MAX} characters")
    return made


def provisioned_id(tenant: str, template: str | None, subject: x509.Name) -> str:
    """Return the id of a device that is registered by its certificate: without a template a UUID, the same at each
    gateway. Characters that an id cannot have become ``-``. Raises `SubjectError`."""
    if template is None:
        return str(uuid.uuid5(uuid.NAMESPACE_X500, f"{tenant}\0{subject_text(subject, 'the certificate')}"))
    made = _NO_ID.sub("-", apply_template(template, subject))
    if len(made) > DEVICE_CHARACTERS_MAX:
        raise SubjectError(f"the template makes an id longer than {DEVICE_CHARACTERS_MAX} characters")
    return made
