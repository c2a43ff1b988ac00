"""Pages and problems of refused clients, from the journal of the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from edge.appliance.accounts.rights_in_words import missing_right
from edge.appliance.clients.documents import RefusalDocument, RefusalPage
from edge.appliance.program import as_called
from edge.broker.limits import REFUSAL_TIMES_MAX
from edge.broker.model.refusals import RefusalJournal, RefusedClient, describe_refusal, next_step_of_refusal
from edge.health.problems import FoundProblem, Severity
from edge.output.text import line

REFUSED_S: Final = 600.0
"""Seconds in which `REFUSAL_TIMES_MAX` refusals of a device make a problem: devices retry within minutes."""

DEVICES_NAMED_MAX: Final = 10
"""Refused devices that become problems at a time: a client that guesses names makes no longer list."""


def page_of_refusals(
    journal: RefusalJournal, *, after: int | None = None, limit: int, text: str = "", client: str | None = None
) -> RefusalPage:
    """Return a page of the journal. `after`: number of the last entry of the page before. `text`: part of the host,
    user, client or address. `client`: only entries of this client identifier or user."""
    found = [each for each in journal.latest() if _matches(each, text, client)]
    left = [each for each in found if after is None or each.number < after]
    shown = left[:limit]
    return RefusalPage(
        refusals=[document_of(each) for each in shown],
        next=str(shown[-1].number) if len(left) > limit else None,
        total=len(found),
    )


def document_of(entry: RefusedClient) -> RefusalDocument:
    """Return the document of one entry."""
    remote, user, client, cause = entry.key
    return RefusalDocument(
        number=entry.number,
        reason=cause.value,
        what=describe_refusal(entry),
        next_step=as_called(next_step_of_refusal(entry)),
        remote=remote,
        user=user,
        client=client,
        address=entry.address,
        first_at=entry.first_at,
        last_at=entry.last_at,
        count=entry.count,
        right=missing_right(entry),
    )


def refusal_problems(journal: RefusalJournal, utc_s: Callable[[], float]) -> Iterator[FoundProblem]:
    """Yield a notice for each device that was refused `REFUSAL_TIMES_MAX` times within `REFUSED_S`."""
    since = utc_s() - REFUSED_S
    devices: dict[tuple[str, str, str], tuple[int, RefusedClient]] = {}
    for entry in journal.latest():
        if entry.last_at < since:
            break
        remote, user, client, cause = entry.key
        device = (user or client, remote, cause.value)
        count = entry.since(since) + (devices[device][0] if device in devices else 0)
        devices[device] = count, entry  # the oldest entry is named, so that the text lasts
    refused = [(device, entry) for device, (count, entry) in devices.items() if count >= REFUSAL_TIMES_MAX]
    refused.sort(key=lambda one: one[1].first_at)
    for (name, remote, _), entry in refused[:DEVICES_NAMED_MAX]:
        named = " from ".join(line(each) for each in (name, remote) if each) or "a client"
        what = f"{named}: {describe_refusal(entry)}"
        yield FoundProblem("device refused", what, next_step_of_refusal(entry), Severity.NOTICE)


def _matches(entry: RefusedClient, text: str, client: str | None) -> bool:
    remote, user, name, _ = entry.key
    if client is not None and client not in (name, user):
        return False
    return not text or any(text in each for each in (remote, user, name, entry.address))
