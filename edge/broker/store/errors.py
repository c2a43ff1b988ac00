"""Errors of the store. The message has the cause and the next step."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot do what was requested. The message has the cause and the next step."""


class StoreBusy(StoreError):
    """Another process uses this data directory."""


class StoreTooNew(StoreError):
    """The store was written by a newer version of the program."""


class StoreFull(StoreError):
    """The medium is full or read-only, or the floor of free space is reached. Nothing of the group was stored."""


class StoreReplaced(StoreError):
    """The data directory of an open store was replaced by another one."""


class StoreDamaged(StoreError):
    """The file is not a store, or its contents fail a check."""


class StoreInaccessible(StoreError):
    """This process cannot read and write the data directory or a file in it."""


class StoreMoved(StoreInaccessible):
    """The gateway was moved elsewhere, or a move to this directory was interrupted."""
