"""Resources as text, and the errors of their validation."""

from __future__ import annotations

from bridge.resources import parse
from bridge.resources.errors import ConfigurationError, ConfigurationRejected
from edge.configuration.kinds import KINDS


def gateway(spec: str = "{}", name: str = "gw1") -> str:
    return f"{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: {name}}}, spec: {spec}}}\n---\n"


def space(spec: str = "{}", name: str = "default") -> str:
    return f"{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: {name}}}, spec: {spec}}}\n---\n"


def tenant(name: str, spec: str) -> str:
    return f"{{apiVersion: waypost/v1, kind: TenantSpace, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n---\n"


def address(spec: str, name: str = "a") -> str:
    return f"{{apiVersion: waypost/v1, kind: Address, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n---\n"


def device(spec: str, name: str) -> str:
    return f"{{apiVersion: waypost/v1, kind: Device, metadata: {{name: {name}}}, spec: {spec}}}\n---\n"


def rules(authorization: str) -> str:
    return (
        "{apiVersion: waypost/v1, kind: MessagingUser, metadata: {name: u}, "
        f"spec: {{username: u, authentication: {{type: password}}, authorization: {authorization}}}}}\n---\n"
    )


def user(password: str, name: str = "u1") -> str:
    return (
        f"{{apiVersion: waypost/v1, kind: MessagingUser, metadata: {{name: {name}}}, "
        f"spec: {{username: alice, authentication: {{type: password, password: {password}}}}}}}\n---\n"
    )


def errors_of(text: str) -> list[ConfigurationError]:
    try:
        return KINDS.validate(parse.parse(KINDS, text, "a.yaml"))
    except ConfigurationRejected as why:
        return why.errors
