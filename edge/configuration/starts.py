"""Starts of a gateway while a version of the hub's configuration is tried: what cannot be started is rolled back."""

from __future__ import annotations

import logging

from edge.broker.store.lock import is_held
from edge.configuration.options import RunOptions
from edge.configuration.repository import Repository

log = logging.getLogger(__name__)


def begin(options: RunOptions) -> None:
    """The gateway starts: some starts later a version that is still tried is given up. Raises `RepositoryError`."""
    repository = Repository(options.data)
    if options.config is None and repository.hub_versions().trial is not None and not is_held(options.data):
        repository.step(lambda versions: versions.started())


def give_up(options: RunOptions, why: str) -> bool:
    """The gateway cannot be started as it is configured: False where that is not for a version that is tried, else
    the version before is in force. Raises `RepositoryError`."""
    repository = Repository(options.data)
    if options.config is not None or repository.hub_versions().trial is None or is_held(options.data):
        return False
    log.error("the hub's configuration is rolled back: the gateway does not start with it: %s", why)
    repository.step(lambda versions: versions.rolled_back(f"the gateway does not start with it: {why}"))
    return True
