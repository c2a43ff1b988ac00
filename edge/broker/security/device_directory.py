"""Directory of devices that log in next to the users of a space: found by user name, or by identity."""

from __future__ import annotations

from typing import Protocol

from edge.broker.security.credentials import CredentialUser


class DeviceDirectory(Protocol):
    """Devices that may log in. Its methods do not block."""

    def login(self, username: str) -> CredentialUser | None:
        """Return the device that logs in by this name, with the passwords of the name; its identity is the name of the
        result."""
        ...

    def user(self, identity: str) -> CredentialUser | None:
        """Return the device with this identity; None if it must not be connected."""
        ...


class NoDevices:
    """Directory without devices."""

    def login(self, username: str) -> CredentialUser | None:
        """Return None."""

    def user(self, identity: str) -> CredentialUser | None:
        """Return None."""
