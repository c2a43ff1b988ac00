"""Hubs on one registry and one lake land each message once, in every order of steps that the seeds give."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest

from cloud.hub.groups import Key
from cloud.hub.registry import commits, lake_check, unfolded
from cloud.hub.registry.commits import RegistryCommits
from cloud.hub.registry.directory import Directory
from cloud.hub.registry.generations import Generations
from cloud.hub.registry.lake_check import LakeCheck
from cloud.hub.registry.marks import GatewayMarks, Marks, read_marks
from cloud.lake.commits import Prepared
from tests.simulation.replicas.lake import ReplicaLake
from tests.simulation.replicas.world import violations
from tests.support.medium import fast_folder

SEEDS = 12
"""Number of seeds in every test run; they are fixed, so that only a change makes a test fail."""
SEEDS_OF_LIMITS = 8
"""Number of seeds with a limit of gateways that grows."""
SEEDS_OF_COPIES = 10
"""Number of seeds with a registry that becomes an older copy of itself."""
LIMITED_SEEDS_OF_COPIES = 5
"""Number of seeds with both."""
SEEDS_SLOW = 3_000
"""Number of new seeds in a long run, half of them with a limit of gateways."""
SEEDS_OF_DEFECTS = (125, 140, 122, 129, 124, 121, *range(126, 160))
"""Seeds of which one must find each deliberate defect. The first six once found all of them."""


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir=fast_folder()) as made:
        yield Path(made)


def test_each_message_lands_once_whichever_hub_lands_it(folder: Path) -> None:
    assert violations(range(SEEDS), folder) == {}


def test_each_message_lands_once_when_its_gateway_was_refused_before(folder: Path) -> None:
    assert violations(range(SEEDS_OF_LIMITS), folder, limited=True) == {}


def test_each_message_lands_once_when_the_registry_becomes_older(folder: Path) -> None:
    assert violations(range(SEEDS_OF_COPIES), folder, copies=True) == {}
    assert violations(range(LIMITED_SEEDS_OF_COPIES), folder, copies=True, limited=True) == {}


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("limited", [False, True])
def test_each_message_lands_once_with_many_new_seeds(folder: Path, copies: bool, limited: bool) -> None:
    first = random.SystemRandom().randrange(1 << 40)
    seeds = range(first, first + SEEDS_SLOW // 2)
    assert violations(seeds, folder, copies=copies, limited=limited) == {}


def take_over_unsettled(commits: RegistryCommits, gateways: Iterable[Key]) -> Sequence[Prepared]:
    """Load marks, whatever other hubs have left open."""
    for key, found in commits._database.transaction(lambda tx: read_marks(tx, list(gateways))).items():
        commits._marks.keep(key, found)
    return []


DEFECTS: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "open commits of other hubs are left open": (
        RegistryCommits,
        "take_over",
        take_over_unsettled,
    ),
    "a hub prepares commits for gateways that have moved": (Generations, "moved", lambda _self, _tx, _who: set()),
    "a commit is forgotten without a fence": (
        ReplicaLake,
        "settled",
        lambda self, table, transaction: (self.committed(table, transaction.application) or 0) >= transaction.commit,
    ),
    "the log of another hub is not folded when a gateway arrives": (commits, "_landed", lambda _named: []),
    "a fold forgets what it folds": (unfolded, "add_landed", lambda _tx, _ranges: None),
    "a commit is folded without its count": (unfolded, "_count", lambda _tx, _ranges: None),
}


def drop_by_emptying(marks: Marks, who: Iterable[Key]) -> None:
    """Take a gateway that is dropped for one of which nothing has landed."""
    for key in who:
        marks.keep(key, GatewayMarks())


DEFECTS_OF_LIMITS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "content lands without an admitted connection": (
        Directory,
        "refused",
        lambda self, who: self.admission.refused(who),
    ),
    "a dropped gateway is taken for a new one": (Marks, "drop", drop_by_emptying),
}


DEFECTS_OF_COPIES: dict[str, tuple[type, str, Any]] = {
    "a hub checks its own commits only": (
        LakeCheck,
        "_numbers",
        lambda self, lake: {
            each: number for each, number in numbers(self, lake).items() if each.writer == self._writer.id
        },
    ),
    "a hub checks at its start only": (LakeCheck, "is_due", property(lambda _self: False)),
    "the ledger is not read back": (lake_check, "_add_to_ledger", lambda _tx, _dropped: None),
}
numbers = LakeCheck._numbers


@pytest.mark.parametrize("defect", DEFECTS_OF_COPIES)
def test_deliberate_defect_of_the_check_is_found(defect: str, folder: Path) -> None:
    where, name, wrong = DEFECTS_OF_COPIES[defect]
    with mock.patch.object(where, name, wrong):
        for seed in SEEDS_OF_DEFECTS:
            if violations(range(seed, seed + 1), folder, copies=True):
                return
    pytest.fail("no seed finds it")


@pytest.mark.parametrize("defect", DEFECTS_OF_LIMITS)
def test_deliberate_defect_of_the_limit_is_found(defect: str, folder: Path) -> None:
    where, name, wrong = DEFECTS_OF_LIMITS[defect]
    with mock.patch.object(where, name, wrong):
        for seed in SEEDS_OF_DEFECTS:
            if violations(range(seed, seed + 1), folder, limited=True):
                return
    pytest.fail("no seed finds it")


@pytest.mark.parametrize("defect", DEFECTS)
def test_deliberate_defect_is_found(defect: str, folder: Path) -> None:
    where, name, wrong = DEFECTS[defect]
    with mock.patch.object(where, name, wrong):
        for seed in SEEDS_OF_DEFECTS:
            if violations(range(seed, seed + 1), folder):
                return
    pytest.fail("no seed finds it")
