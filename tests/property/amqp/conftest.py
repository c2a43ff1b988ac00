"""Everything here holds for both forms of the engine's inner loops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.loops import FORMS, running


@pytest.fixture(scope="module", params=FORMS, autouse=True)
def loops(request: pytest.FixtureRequest) -> Iterator[str]:
    with running(request.param):
        yield request.param
