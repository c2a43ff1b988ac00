"""Errors that a device gets for a refused message (`edge.broker.hono.errors`)."""

from __future__ import annotations

import pytest

from edge.broker.hono.errors import refusal_error
from edge.broker.model.interfaces import Refusal


@pytest.mark.parametrize("why", list(Refusal))
def test_every_refusal_has_a_status(why: Refusal) -> None:
    assert 400 <= refusal_error(why).status < 600
