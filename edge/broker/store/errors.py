"""What can be wrong with a store; the message says why and what to do next."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot do what was asked; the message says why and what to do next."""


class StoreBusy(StoreError):
    """Another process holds this data directory."""


class StoreTooNew(StoreError):
    """The store was made by a newer program."""


class StoreFull(StoreError):
    """The medium is full or read-only, or the floor under free space is reached; nothing of the group was kept."""


class StoreReplaced(StoreError):
    """Another data directory is found where the one of an open store was."""


class StoreDamaged(StoreError):
    """The file is not a store, or what it holds fails its checks."""


class StoreInaccessible(StoreError):
    """The data directory or a file in it cannot be read and written by this process."""
