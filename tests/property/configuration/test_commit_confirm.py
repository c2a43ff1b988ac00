"""Commit-confirm on disk: after a kill between any two steps, a permitted version of the hub is in force."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bridge.desired import ApplyOutcome, Desired
from bridge.resources.parse import parse
from edge.configuration.hub_versions import STARTS_MAX, VersionNotAccepted
from edge.configuration.kinds import KINDS
from edge.configuration.repository import Repository
from tests.support.medium import fast_folder
from tests.support.simulated_kill import SimulatedKill

AUTHORITY = "ab" * 32
OWN = """
kind: Gateway
apiVersion: waypost/v1
metadata: {name: hall}
spec: {listeners: {mqtt: "127.0.0.1:1883"}, hub: {url: "amqp://127.0.0.1:5672"}}
---
kind: Address
apiVersion: waypost/v1
metadata: {name: plant}
spec: {address: plant/#, type: topic, forwarders: [{name: all, remoteAddress: hub/plant/#}]}
"""


def documents(number: int, *, valid: bool) -> list[dict[str, Any]]:
    """Return version `number` of the hub; the name of an address shows the version."""
    remote = "hub" if valid else "nowhere"
    spec = {"address": f"v{number}/#", "type": "topic", "forwarders": [{"name": "x", "remoteAddress": remote}]}
    return [{"apiVersion": "waypost/v1", "kind": "Address", "metadata": {"name": "managed"}, "spec": spec}]


def desired(number: int, *, valid: bool = True) -> Desired:
    return Desired(
        tenant="default", gateway="hall", version=number, made_at=0, resources=documents(number, valid=valid)
    )


def in_force(repository: Repository) -> int:
    """Return the version in force according to the configuration, or 0 for no version of the hub."""
    found = [each for each in repository.load().resources if each.name == "managed"]
    return int(found[0].document["spec"]["address"].split("/")[0][1:]) if found else 0


class CommitConfirm(RuleBasedStateMachine):
    """Gateway that can be killed anywhere, and the state that an operator expects of it."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(dir=fast_folder())
        self._data = Path(self._folder.name)
        self._repository = Repository(self._data)
        self._repository.apply(parse(KINDS, OWN, "own.yaml"))
        self._own = (self._data / "config" / "resources.json").read_bytes()
        self.number = 0
        self.confirmed = self.newest = 0
        self.trial: int | None = None
        self.starts = 0

    def teardown(self) -> None:
        self._folder.cleanup()

    @initialize()
    def nothing_yet(self) -> None:
        assert in_force(self._repository) == 0

    def _do(self, step: Any, at: str) -> bool:
        """Take a step; return False when a kill came before it had any effect."""
        if at == "whole":
            step()
            return True
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", _killed) if at == "writing" else patch.setattr(Path, "replace", _killed)
            if at == "synced":
                patch.undo()
                patch.setattr("bridge.durable_file.sync_path", _killed)
                patch.setattr("edge.configuration.file.sync_path", _killed)
            try:
                step()
            except SimulatedKill:
                pass
            else:
                return True  # nothing had to be written
        self._repository = Repository(self._data)  # new process
        return at == "synced"

    at = st.sampled_from(["whole", "whole", "writing", "renaming", "synced"])

    @rule(at=at, ahead=st.integers(1, 3), valid=st.booleans())
    def a_newer_version_comes(self, at: str, ahead: int, valid: bool) -> None:
        number = self.newest + ahead
        wanted = desired(number, valid=valid)
        if self.trial is not None:
            with pytest.raises(VersionNotAccepted):
                self._repository.take(wanted, AUTHORITY, lambda _whole: None)
            return
        if not self._do(lambda: self._repository.take(wanted, AUTHORITY, lambda _whole: None), at):
            return
        self.newest = number
        if valid:
            self.trial, self.starts = number, 0
        else:
            failure = self._repository.hub_versions().failure
            assert failure is not None
            assert (failure.version, failure.outcome) == (number, ApplyOutcome.REFUSED)
            assert "nowhere" in failure.why

    @precondition(lambda self: self.newest > 0)
    @rule(data=st.data())
    def an_older_version_comes(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, self.newest))
        with pytest.raises(VersionNotAccepted):
            self._repository.take(desired(number), AUTHORITY, lambda _whole: None)

    @rule(at=at)
    def the_hub_confirms(self, at: str) -> None:
        number = self.trial or self.confirmed
        if self._do(lambda: self._repository.step(lambda known: known.confirmed_by_hub(number)), at):
            self.confirmed, self.trial = number, None

    @rule(number=st.integers(0, 20))
    def a_confirmation_comes_late(self, number: int) -> None:
        if number != self.trial:
            before = self._repository.hub_versions()
            assert self._repository.step(lambda known: known.confirmed_by_hub(number)) == before

    @rule(at=at)
    def the_deadline_passes(self, at: str) -> None:
        if self._do(lambda: self._repository.step(lambda known: known.rolled_back("no hub")), at):
            self.trial = None

    @rule(at=at)
    def the_program_starts(self, at: str) -> None:
        self._repository = Repository(self._data)
        if not self._do(lambda: self._repository.step(lambda known: known.started()), at) or self.trial is None:
            return
        self.starts += 1
        if self.starts > STARTS_MAX:
            self.trial = None

    @invariant()
    def what_is_in_force_is_what_should_be(self) -> None:
        expected = self.trial if self.trial is not None else self.confirmed
        assert in_force(self._repository) == in_force(Repository(self._data)) == expected
        report = self._repository.hub_versions().report()
        assert (report.version, report.trying, report.newest) == (self.confirmed, self.trial, self.newest)

    @invariant()
    def what_the_gateway_has_itself_is_as_it_was(self) -> None:
        assert (self._data / "config" / "resources.json").read_bytes() == self._own


def _killed(*_arguments: object) -> None:
    raise SimulatedKill


TestCommitConfirm = CommitConfirm.TestCase
TestCommitConfirm.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
