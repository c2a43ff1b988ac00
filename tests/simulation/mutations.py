"""Deliberate defects that break the guarantees; the simulation has to find each of them (`tests.simulation.mutation`).

A mutation replaces a function of the product during a run. `python -m tests.simulation.mutations` prints the number of
seeds that each defect needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec

from bridge.command import Receipt
from bridge.forwarders.inbox import Incoming
from bridge.forwarders.outcome import ForwardOutcome
from bridge.message import Stored
from bridge.uplink import Uplink
from cloud.hub.acceptor import Acceptor
from cloud.hub.commands.dispatch import Dispatch
from cloud.hub.commands.service import HubCommands
from cloud.hub.committer import Committer
from cloud.hub.desired.service import DesiredConfigurations
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.groups import LandingOutcome, QueueEntry
from cloud.hub.lander import Lander
from cloud.hub.peers import HubPeer
from cloud.hub.registry import configurations
from cloud.hub.service import HubService
from cloud.lake.landing import Landing
from cloud.lake.sequences import SequenceSet, Span
from edge.broker.delivery.cursor_window import CursorWindow
from edge.broker.delivery.feeds import LogFeeds
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.ranges import Ranges
from edge.broker.mqtt import session_store
from edge.broker.mqtt.session_store import SessionStore
from edge.broker.retention.manifests import Manifests, StatedAddress
from edge.broker.router.answers import Answers
from edge.broker.router.commands.receipts import CommandReceipts
from edge.broker.router.inbound import IncomingForwarder
from edge.broker.router.recent_names import NamesByForwarder
from edge.broker.router.router import Router
from edge.broker.store.counters import SequenceCounters
from edge.broker.store.ledger import Entries, OpenLedger
from edge.broker.store.log_reads import LogReads
from edge.broker.store.medium import FAILED
from edge.broker.store.records import Committed, Loss
from edge.broker.store.ticket import Ticket
from edge.configuration.hub_versions import HubVersions, Version
from edge.configuration.trials import Trials
from tests.simulation import registry
from tests.simulation.checker import Violation
from tests.simulation.mutation import Mutation, Simulation
from tests.simulation.run import run
from tests.simulation.world import Options

# --- the gateway ----------------------------------------------------------------------------------------------------


def _answer_at_once(self: Answers, _ticket: Ticket, origin: Origin, tokens: Sequence[int]) -> None:
    self.accept(origin, tokens)


_decide = Ticket.decide


def _always_kept(self: Ticket, _error: Exception | None) -> None:
    _decide(self, None)


_committed = Router.committed


def _by_route(self: Router, commit: Committed) -> None:
    """Restore a former defect.

    The present rule of an address decides which cursors are woken, and all other cursors pass to the end.
    """
    woken = [(_log_now(self, stored.run.address), stored, log) for log, stored in commit.appended]
    with mock.patch.object(self.feeds, "committed", partial(_wake, self.feeds, woken)):
        _committed(self, commit)


def _log_now(router: Router, address: str) -> int:
    rule = router.addresses.table.rule(address)
    return router._store.logs.open(f"queue {address}" if rule.type.is_queue else f"topic {rule.pattern}")


def _first_only(self: LogFeeds, appended: Sequence[tuple[int, Stored]]) -> None:
    """Deliver only the first run of a commit, and pass the others."""
    _wake(self, [(log if i == 0 else -1, stored, log) for i, (log, stored) in enumerate(appended)])


def _wake(feeds: LogFeeds, appended: Sequence[tuple[int, Stored, int]], _committed: Any = None) -> None:
    """Wake the subscriptions of one log for a run of another: (log to wake, run, log of the run)."""
    touched = {}
    for woken, stored, log in appended:
        for number in {woken, log}:
            feed = feeds._feeds.get(number)
            if feed is not None and number == log:
                feed.watermark = stored.position + len(stored.run)
                feeds._moved[feed] = None
        feed = feeds._feeds.get(woken)
        for follower in feed.matching(stored.run.address) if feed is not None else ():
            if woken == log and (follower.accepts is None or follower.accepts(stored.run)):
                follower.arrived(stored)
                touched[follower] = None
    for follower in touched:
        follower.pump()


def _read_failed_is_the_end(
    self: LogReads, log: int, position: int, bytes_max: int, done: Any, end: int, runs: Sequence[Stored]
) -> None:
    _was_read(self, log, position, bytes_max, done, end, [] if runs is FAILED else runs)


_was_read = LogReads._was_read
_number = SequenceCounters.number


def _number_from_nothing(self: SequenceCounters, group: Any, load: Any) -> None:
    if not hasattr(self, "forgotten"):
        self.sequences.clear()
        self.forgotten = True  # type: ignore[attr-defined]
    _number(self, group, lambda _addresses: {})


def _no_entries(self: OpenLedger, losses: Sequence[Loss]) -> Entries:
    return Entries()


def _complete_at_once(self: SessionStore, session: Any, packet_ids: Sequence[int]) -> None:
    session_store._complete(session, packet_ids)


def _nothing_incoming(self: SessionStore, session: Any) -> None:
    """Drop incoming QoS 2 identifiers instead of storing them."""
    return


_refused = CommandReceipts.refused


def _wait_in_memory(self: CommandReceipts, tokens: Sequence[int], why: Refusal) -> None:
    """Restore a former defect.

    A later commit removes the command from its queue, and the receipt waits for the next tick.
    """
    with mock.patch.object(self, "_state", SimpleNamespace(put=lambda *_: None)):
        _refused(self, tokens, why)


_told = CommandReceipts._tell


def _tell_later(self: CommandReceipts, device: str, identifier: str, receipt: Receipt, why: str = "") -> None:
    asyncio.get_running_loop().call_later(0.05, _told, self, device, identifier, receipt, why)


# --- the link -------------------------------------------------------------------------------------------------------


_detached = Uplink.detached


def _forget_unsettled(self: Uplink) -> None:
    lost = list(self._unsettled.values())
    self._unsettled.clear()
    _detached(self)
    for parcel in lost:
        parcel.flow.held_bytes -= sum(piece.size for piece in parcel.pieces)


_send = Uplink._send


def _settle_when_sent(self: Uplink, engine: Any, link: Any, flow: Any, pieces: Sequence[Any], message: bytes) -> None:
    _send(self, engine, link, flow, pieces, message)
    for piece in pieces:
        position, _, run = piece.stored
        piece.subscription.settle(flow, position, position + len(run) - 1, self._outcomes.accepted)


_leave_to_others = CursorWindow.release_all


def _leave_to_nobody(self: CursorWindow) -> Ranges:
    _leave_to_others(self)
    return Ranges()


def _pass_what_is_left(self: CursorWindow) -> Ranges:
    left = _leave_to_others(self)
    if self.next > 0:
        self.acknowledge(0, self.next - 1)
    return left


_dispatched = Dispatch._send


def _queued_when_sent(self: Dispatch, key: Any, gateway: Any, found: Any) -> None:
    _dispatched(self, key, gateway, found)
    for tag in list(gateway.under_way):
        self.settled(gateway.line, tag, ForwardOutcome.ACCEPTED, "")


def _heard_by_nobody(self: HubCommands, news: Any, kept: Any) -> None:
    kept(True)


# --- versions of the hub's configuration ------------------------------------------------------------------------------


_await_confirmation = Trials._await_confirmation


def _confirm_what_is_tried(self: Trials, trial: Version) -> None:
    _await_confirmation(self, trial)
    self._do(self._confirm(trial.number))


def _try_for_ever(_self: Trials, _trial: Version) -> None:
    """Keep the tried version for ever: the previous version does not return."""


def _forget_what_failed(self: HubVersions, _why: str) -> HubVersions:
    return msgspec.structs.replace(self, newest=self.newest - 1, trial=None, starts=0)


def _confirm_on_arrival(self: DesiredConfigurations, key: Any, report: Any, kept: Any) -> None:
    kept()
    _told(self, key, report, lambda: None)


_told = DesiredConfigurations.reported


def _as_it_says(_tx: Any, _key: Any, report: Any) -> Any:
    return report


# --- the hub --------------------------------------------------------------------------------------------------------


def _accept_what_failed(entries: Sequence[QueueEntry], why: str, report: Any) -> None:
    report.fault = why
    for entry in entries:
        entry.land()


def _give_back(entries: Sequence[QueueEntry], why: str, report: Any) -> None:
    report.fault = why
    for entry in entries:
        entry.verdict, entry.words = LandingOutcome.RELEASED, "poison"


# --- incoming forwarders, manifests ---------------------------------------------------------------------------------


_receive = IncomingForwarder.receive


def _answer_on_arrival(self: IncomingForwarder, messages: Sequence[Incoming]) -> None:
    if self._settle is not None:
        self._settle([message.token for message in messages if message.token is not None], ForwardOutcome.ACCEPTED, "")
    _receive(self, [message._replace(token=None) for message in messages])


def _write_no_names(_self: NamesByForwarder) -> None:
    """Do not store the names of received messages, so that they are lost with the process."""


def _always_written(_self: Manifests) -> bool:
    return True


def _all_was_stated(self: Manifests) -> dict[str, StatedAddress]:
    """Treat everything that a former process accepted as stated."""
    if not hasattr(self, "since"):
        self.since = {address: StatedAddress(end) for address, end in self._lineage.sequences()}  # type: ignore[attr-defined]
    return {**self.since, **_all_stated(self)}  # type: ignore[attr-defined]


_all_stated = Manifests._all_stated


# --- the hub's answers ----------------------------------------------------------------------------------------------


_answer = HubService._answer


def _reject(self: HubService, intake: Any, tokens: Sequence[int], verdict: LandingOutcome, words: str) -> None:
    if words == "poison":
        for token in tokens:
            intake.reject(token, "amqp:internal-error", words)
    else:
        _answer(self, intake, tokens, verdict, words)


_put = Committer.put


def _answer_before_landing(self: Committer, session: Any, content: Any, answer: Any) -> None:
    answer(LandingOutcome.LANDED, "")
    _put(self, session, content, lambda _verdict, _words: None)


def _forget_prepared(self: Landing) -> None:
    for prepared in self._commits.unresolved():
        self._commits.forget(prepared)
    self._unsettled = set()


def _confirm_prepared(self: Landing) -> None:
    for prepared in self._commits.unresolved():
        self._commits.confirm(prepared, 0)
    self._unsettled = set()


def _above_the_mark(self: SequenceSet, first: int, last: int) -> list[Span]:
    first = max(first, self.mark + 1)
    return [(first, last)] if first <= last else []


_compare = Lander._compare


def _nothing_is_older(self: Lander, group: Any, report: Any) -> None:
    _compare(self, group, report)
    for entry in group.entries:
        if entry.verdict is LandingOutcome.OLDER:
            entry.land()


def _never(*_: Any) -> bool:
    return False


def _refuses_nobody(_self: Enrolment, _peer: HubPeer, _serial: int) -> None:
    return None


def _asks_nobody_to_leave(_self: Acceptor) -> None:
    """Keep connections of revoked certificates."""


MUTATIONS = (
    Mutation("answers before the commit", [(Answers, "accept_with", _answer_at_once)]),
    Mutation(
        "answers accepted when the commit failed",
        [(Ticket, "decide", _always_kept)],
        ("full_medium", "failing_medium", "read_only_medium"),
    ),
    Mutation(
        "wakes by the route of the address, and passes cursors to the end of the log",
        [(Router, "committed", _by_route)],
        ("new_rule", "type_change"),
    ),
    Mutation(
        "drops the rest of a commit, and passes cursors to the end of the log", [(LogFeeds, "committed", _first_only)]
    ),
    Mutation(
        "takes a read that failed for the end of the log",
        [(LogReads, "_was_read", _read_failed_is_the_end)],
        ("failing_reads", "restart", "kill"),
    ),
    Mutation(
        "a restart gives sequences again", [(SequenceCounters, "number", _number_from_nothing)], ("restart", "kill")
    ),
    Mutation("gives up without the ledger", [(OpenLedger, "entries", _no_entries)]),
    Mutation(
        "frees a QoS 2 identifier before that is on disk",
        [(SessionStore, "release", _complete_at_once)],
        ("power_cut", "kill", "slow_medium"),
        8,
    ),
    Mutation(
        "does not keep QoS 2 identifiers",
        [(SessionStore, "save_incoming", _nothing_incoming)],
        ("power_cut", "slow_medium"),
        12,
    ),
    Mutation(
        "forgets to send again what was not settled",
        [(Uplink, "detached", _forget_unsettled)],
        ("hub_kill", "cut_connections", "partition"),
    ),
    Mutation(
        "moves the cursor before the hub's word", [(Uplink, "_send", _settle_when_sent)], ("hub_kill", "slow_lake")
    ),
    Mutation(
        "forgets what was there when the lanes part",
        [(CursorWindow, "release_all", _leave_to_nobody)],
        ("hub_kill", "restart", "kill"),
    ),
    Mutation(
        "moves the cursor past what was there when the lanes part",
        [(CursorWindow, "release_all", _pass_what_is_left)],
        ("hub_kill", "restart", "kill"),
    ),
    Mutation(
        "answers a far side before the commit",
        [(IncomingForwarder, "receive", _answer_on_arrival)],
        ("kill", "power_cut", "slow_medium"),
    ),
    Mutation(
        "forgets with the process what has come from a far side",
        [(NamesByForwarder, "prepare", _write_no_names)],
        ("kill", "restart", "far_crash"),
        8,
    ),
    Mutation(
        "forgets with the process what a hub has sent down",
        [(NamesByForwarder, "prepare", _write_no_names)],
        ("hub_kill", "registry_fails", "cut_connections", "kill", "restart"),
        8,
    ),
    Mutation(
        "keeps receipts that are refused in memory only",
        [(CommandReceipts, "refused", _wait_in_memory)],
        ("failing_medium", "full_medium", "power_cut"),
        8,
    ),
    Mutation("writes a receipt behind the commit of its command", [(CommandReceipts, "_tell", _tell_later)]),
    Mutation("the hub takes a command for queued when it is sent", [(Dispatch, "_send", _queued_when_sent)], seed=7),
    Mutation(
        "the hub keeps nothing of what a gateway says of commands", [(HubCommands, "queue_news", _heard_by_nobody)]
    ),
    Mutation("confirms a version when it is tried", [(Trials, "_await_confirmation", _confirm_what_is_tried)]),
    Mutation(
        "goes on with a version that cuts it off",
        [(Trials, "_await_confirmation", _try_for_ever)],
        ("new_version",),
        seed=3,
    ),
    Mutation("tries again what it has given up", [(HubVersions, "rolled_back", _forget_what_failed)], ("new_version",)),
    Mutation(
        "the hub confirms a version before its registry knows that it is tried",
        [(DesiredConfigurations, "reported", _confirm_on_arrival)],
    ),
    Mutation(
        "the hub takes numbers of versions for the versions",
        [(configurations, "_of_our_versions", _as_it_says)],
        ("new_version", "put_back_versions"),
        12,
        seed=19,
    ),
    Mutation(
        "states what was accepted before that is on disk",
        [(Manifests, "_written", _always_written)],
        ("state", "slow_medium", "failing_medium", "power_cut"),
        12,
    ),
    Mutation(
        "takes for stated what a former process accepted",
        [(Manifests, "_all_stated", _all_was_stated)],
        ("state", "kill", "restart"),
    ),
    Mutation(
        "the hub lets revoked certificates in",
        [(Enrolment, "refusal", _refuses_nobody)],
        ("revoke",),
    ),
    Mutation(
        "the hub lets gateways stay whose certificates are revoked",
        [(Acceptor, "review", _asks_nobody_to_leave)],
        ("revoke",),
    ),
    Mutation(
        "the hub accepts what it could not land",
        [(Lander, "_hold", staticmethod(_accept_what_failed))],
        ("lake_fails", "hub_fault", "registry_fails"),
    ),
    Mutation(
        "the hub rejects what it could not land",
        [(Lander, "_hold", staticmethod(_give_back)), (HubService, "_answer", _reject)],
        ("lake_fails", "hub_fault", "registry_fails"),
    ),
    Mutation(
        "the hub answers before it has landed",
        [(Committer, "put", _answer_before_landing)],
        ("hub_kill", "hub_kill_in_landing", "slow_lake"),
    ),
    Mutation(
        "the hub forgets prepared commits without looking them up",
        [(Landing, "resolve", _forget_prepared)],
        ("hub_kill_in_landing", "lake_fails"),
    ),
    Mutation(
        "the hub confirms prepared commits without looking them up",
        [(Landing, "resolve", _confirm_prepared)],
        ("hub_kill_in_landing", "lake_fails"),
    ),
    Mutation(
        "the hub trims by its highest sequence",
        [(SequenceSet, "missing", _above_the_mark)],
        ("failing_reads", "power_cut", "new_forwarder"),
        12,
    ),
    Mutation(
        "the hub does not notice an older copy of a store",
        [(Lander, "_compare", _nothing_is_older)],
        ("back_up", "restart", "put_back"),
        8,
    ),
    Mutation(
        "the hub compares openings only, and not how far the store went",
        [(registry, "is_earlier_copy", _never)],
        ("back_up", "put_back_unnoticed"),
        8,
        seed=10,
    ),
)


def _judge(mutation: Mutation, seed: int) -> list[Violation]:
    options = Options(kinds=tuple(mutation.kinds) or Options().kinds, faults=mutation.faults)
    return run(seed, options)[1]


SIMULATION = Simulation(_judge, seeds_max=100)


if __name__ == "__main__":
    SIMULATION.table(MUTATIONS)
