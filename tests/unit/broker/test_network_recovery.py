"""Direct messages keep a way when links, paths and consumers change; no sender waits without end."""

from __future__ import annotations

import pytest

from bridge.engine import DeliveryState
from edge.appliance.network_health import network_problems
from edge.broker.delivery import AnycastGroup
from edge.broker.limits import (
    NETWORK_IN_FLIGHT_BYTES_MAX,
    NETWORK_LINK_IDLE_S,
    NETWORK_LINK_RETRY_S,
    NETWORK_LINK_TURN_S,
    NETWORK_LINKS_MAX,
)
from edge.broker.model.interfaces import DeliveryOutcome, Refusal
from edge.broker.network.protocol import LinkFault
from edge.broker.network.statements import ANYCAST
from tests.unit.broker.network_site import (
    Neighbour,
    NetworkSite,
    SiteConsumer,
    SiteOrigin,
    answer,
    message,
    statement,
)


class TestSecondLinkToANeighbour:
    """A neighbour dials again while its former connection still looks alive."""

    def test_the_newer_link_takes_over_before_the_dead_one_is_noticed(self) -> None:
        site = NetworkSite()
        first = Neighbour(site, "b")
        first.say(statement("b", {"a": 1}, ["ajobs", "mnews"]))
        site.group("jobs")
        (branch,) = site.network.sinks("news")
        assert branch.peering is first.peering  # type: ignore[attr-defined]
        second = Neighbour(site, "b")
        assert site.links_to("jobs")["b"].peering is second.peering
        (branch,) = site.network.sinks("news")
        assert branch.peering is second.peering  # type: ignore[attr-defined]

    @pytest.mark.parametrize("ended", [0, 1])
    def test_links_stay_when_one_of_two_links_ends(self, ended: int) -> None:
        site = NetworkSite()
        links = [Neighbour(site, "b") for _ in range(2)]
        links[0].say(statement("b", {"a": 1}, ["ajobs", "mnews"]))
        group = site.group("jobs")
        site.network.ended(links[ended].peering)
        left = links[1 - ended].peering
        assert site.network.reaches(ANYCAST, "jobs")
        egress = site.links_to("jobs")["b"]
        assert egress.peering is left
        site.grant(egress, 5)
        assert group.credit == 5
        assert [each.peering for each in site.network.sinks("news")] == [left]  # type: ignore[attr-defined]

    def test_unanswered_messages_of_the_dead_link_fail_and_new_ones_take_the_other(self) -> None:
        site, origin = NetworkSite(), SiteOrigin()
        links = [Neighbour(site, "b") for _ in range(2)]
        links[0].say(statement("b", {"a": 1}, ["ajobs"]))
        group = site.group("jobs")
        site.grant(site.links_to("jobs")["b"], 1)
        group.offer(origin, message(), [1])
        group.offer(origin, message(), [2])  # waits for credit
        site.network.ended(links[1].peering)
        assert origin.answers == {1: Refusal.PATH_LOST}
        egress = site.links_to("jobs")["b"]
        site.grant(egress, 5)
        answer(egress, 0, DeliveryState.ACCEPTED)
        assert origin.answers == {1: Refusal.PATH_LOST, 2: "accepted"}


class TestReturnedMessage:
    """A message that a nearer consumer has returned goes to the next one, though the nearer one is ready."""

    def test_one_that_a_consumer_here_released_goes_to_another_router(self) -> None:
        site, origin = NetworkSite(), SiteOrigin()
        neighbour = Neighbour(site, "b")
        neighbour.say(statement("b", {"a": 1}, ["ajobs"]))
        group = site.group("jobs")
        local = SiteConsumer(credit=10)
        group.join(local)
        group.offer(origin, message(), [1])
        assert local.positions == [0]
        group.settle(local, 0, 0, DeliveryOutcome.RELEASED)
        egress = site.links_to("jobs")["b"]
        site.grant(egress, 3)
        assert egress.unsettled == 1
        answer(egress, 0, DeliveryState.ACCEPTED)
        assert origin.answers == {1: "accepted"}

    def test_all_have_released_it_and_the_sender_gets_an_answer(self) -> None:
        site, origin = NetworkSite(), SiteOrigin()
        neighbour = Neighbour(site, "b")
        neighbour.say(statement("b", {"a": 1, "c": 5}, ["ajobs"]))
        neighbour.say(statement("c", {"b": 5}, ["ajobs"]))
        group = site.group("jobs")
        links = site.links_to("jobs")
        for egress in links.values():
            site.grant(egress, 100)
        group.offer(origin, message(), [1])
        assert (links["b"].unsettled, links["c"].unsettled) == (1, 0)
        answer(links["b"], 0, DeliveryState.RELEASED)
        assert (links["b"].unsettled, links["c"].unsettled) == (0, 1)
        answer(links["c"], 0, DeliveryState.RELEASED)
        assert origin.answers == {1: Refusal.RELEASED}

    def test_another_consumer_here_still_comes_before_another_router(self) -> None:
        site, origin = NetworkSite(), SiteOrigin()
        neighbour = Neighbour(site, "b")
        neighbour.say(statement("b", {"a": 1}, ["ajobs"]))
        group = site.group("jobs")
        site.grant(site.links_to("jobs")["b"], 10)
        here = [SiteConsumer(credit=10) for _ in range(2)]
        for each in here:
            group.join(each)
        group.offer(origin, message(), [1])
        (holder,) = [each for each in here if each.positions]
        group.settle(holder, 0, 0, DeliveryOutcome.RELEASED)
        assert [each.positions for each in here] == [[0], [0]]
        assert site.links_to("jobs")["b"].unsettled == 0


class TestEndedLink:
    """A link with messages that the neighbour has ended or refused."""

    def test_it_is_attached_again_for_senders_that_wait(self) -> None:
        site = NetworkSite()
        neighbour = Neighbour(site, "b")
        neighbour.say(statement("b", {"a": 1}, ["ajobs"]))
        site.group("jobs")
        neighbour.end_link(site.links_to("jobs")["b"])
        assert site.links_to("jobs") == {}
        site.pass_time(NETWORK_LINK_RETRY_S + 1, neighbour)
        egress = site.links_to("jobs")["b"]
        assert egress._link in neighbour.engine.links

    def test_the_same_for_messages_that_pass_through(self) -> None:
        site = NetworkSite()
        far, near = Neighbour(site, "b"), Neighbour(site, "c")
        far.say(statement("b", {"a": 1}, ["ajobs"]))
        transit = site.network._transit_to("b", "jobs")

        class Arrival:
            notified = 0

            def top_up(self) -> None:
                self.notified += 1

        link = Arrival()
        transit.ingress.links[link] = None  # type: ignore[index]
        assert transit.ingress.credit_for(link) == 0  # type: ignore[arg-type]
        far.end_link(transit.remote.egress[0])
        site.pass_time(NETWORK_LINK_RETRY_S + 1, far, near)
        (egress,) = transit.remote.egress
        assert egress._link in far.engine.links
        site.grant(egress, 4)
        assert link.notified


class TestChangedPath:
    """Messages that wait keep waiting while their path changes."""

    def test_a_statement_moves_them_to_another_neighbour(self) -> None:
        site, origin = NetworkSite(), SiteOrigin()
        b, _, group = two_paths(site)
        group.offer(origin, message(), [5])
        assert site.links_to("jobs")["d"].peering.peer_name == "b"
        b.say(statement("b", {"a": 1}, version=2))
        egress = site.links_to("jobs")["d"]
        assert egress.peering.peer_name == "c"
        assert not origin.answers
        site.grant(egress, 1)
        answer(egress, 0, DeliveryState.ACCEPTED)
        assert origin.answers == {5: "accepted"}

    def test_the_end_of_a_connection_moves_them_too(self) -> None:
        site, origin = NetworkSite(), SiteOrigin()
        b, _, group = two_paths(site)
        group.offer(origin, message(), [5])
        site.network.ended(b.peering)
        assert not origin.answers
        egress = site.links_to("jobs")["d"]
        assert egress.peering.peer_name == "c"
        site.grant(egress, 1)
        assert egress.unsettled == 1


def two_paths(site: NetworkSite) -> tuple[Neighbour, Neighbour, AnycastGroup]:
    """Return the neighbours `b` and `c`, both linked to `d`, and the group of ``jobs``, which has a consumer at `d`."""
    b, c = Neighbour(site, "b"), Neighbour(site, "c")
    b.say(statement("b", {"a": 1, "d": 1}))
    b.say(statement("d", {"b": 1, "c": 1}, ["ajobs"]))
    c.say(statement("c", {"a": 1, "d": 1}))
    return b, c, site.group("jobs")


class TestMulticastNames:
    """Clients publish to ever new multicast names."""

    def test_branches_of_unused_names_are_forgotten_with_their_routes(self) -> None:
        site = NetworkSite()
        neighbour = Neighbour(site, "b")
        neighbour.say(statement("b", {"a": 1}, ["mnews/#"]))
        for number in range(50):
            site.network.sinks(f"news/{number}")
        assert len(neighbour.peering.egress) == 50
        before = site.forgotten_routes
        site.pass_time(2 * NETWORK_LINK_IDLE_S, neighbour)
        assert not site.network._branches
        assert not neighbour.peering.egress
        assert site.forgotten_routes == before + 1
        assert site.network.sinks("news/1")

    def test_their_number_is_bounded(self) -> None:
        site = NetworkSite()
        neighbour = Neighbour(site, "b")
        neighbour.say(statement("b", {"a": 1}, ["mnews/#"]))
        for number in range(NETWORK_LINKS_MAX + 10):
            site.network.sinks(f"news/{number}")
        assert len(site.network._branches) == NETWORK_LINKS_MAX
        assert site.network.sinks("news/0")


class TestBusyNeighbour:
    """The greetings of a neighbour wait behind its messages."""

    def test_one_that_answers_messages_is_not_silent(self) -> None:
        site, origin = NetworkSite(), SiteOrigin()
        neighbour = Neighbour(site, "b")
        neighbour.say(statement("b", {"a": 1}, ["ajobs"]))
        group = site.group("jobs")
        egress = site.links_to("jobs")["b"]
        site.grant(egress, 1_000)
        for number in range(40):
            group.offer(origin, message(), [number])
            answer(egress, number, DeliveryState.ACCEPTED)
            site.pass_time(0.25)
        assert not neighbour.ended_for
        site.pass_time(2)
        assert neighbour.ended_for == [LinkFault.SILENT.value]


def test_a_consumer_that_never_answers_stops_no_other_address() -> None:
    site, origin = NetworkSite(), SiteOrigin()
    neighbour = Neighbour(site, "b")
    names = [f"slow/{number}" for number in range(10)]
    neighbour.say(statement("b", {"a": 1}, ["ajobs", *(f"a{name}" for name in names)]))
    body = b"\x00\x53\x75\xb0" + (1_000_000).to_bytes(4, "big") + b"x" * 1_000_000
    groups = {name: site.group(name) for name in [*names, "jobs"]}
    for name in names:
        site.grant(site.links_to(name)["b"], 1_000)
        for number in range(4):
            groups[name].offer(origin, message(name, body), [number])
    assert neighbour.peering.unanswered_bytes > NETWORK_IN_FLIGHT_BYTES_MAX
    egress = site.links_to("jobs")["b"]
    site.grant(egress, 100)
    assert groups["jobs"].credit == 100
    slow = site.links_to(names[0])["b"]
    assert slow.credit == 0
    for tag in range(slow.unsettled):
        answer(slow, tag, DeliveryState.ACCEPTED)
    assert slow.credit


class TestLinksInUse:
    """More addresses are in use than a neighbour takes links."""

    def crowded(self, further: int) -> tuple[NetworkSite, Neighbour, list[str]]:
        site = NetworkSite()
        neighbour = Neighbour(site, "b")
        names = [f"jobs/{number}" for number in range(NETWORK_LINKS_MAX + further)]
        neighbour.say(statement("b", {"a": 1}, [f"a{name}" for name in names]))
        for name in names:
            site.group(name)
        return site, neighbour, names

    def test_each_of_them_gets_a_turn(self) -> None:
        site, neighbour, names = self.crowded(3)
        assert neighbour.peering.attached_links == NETWORK_LINKS_MAX
        assert site.network.waiting_links == {"b": 3}
        seen: set[str] = set()
        for _ in range(12):
            site.pass_time(NETWORK_LINK_TURN_S, neighbour)
            seen.update(name for name in names if site.links_to(name)["b"]._link is not None)
            assert neighbour.peering.attached_links <= NETWORK_LINKS_MAX
        assert seen == set(names)

    def test_the_link_that_is_unused_for_longest_is_detached_and_none_with_messages(self) -> None:
        site, neighbour, names = self.crowded(1)
        origin = SiteOrigin()
        for name in names[:-1]:
            site.grant(site.links_to(name)["b"], 10)
        for number, name in enumerate(names[:-1]):
            if name != names[7]:
                site.groups[name].offer(origin, message(name), [number])
        site.pass_time(NETWORK_LINK_TURN_S, neighbour)
        assert site.links_to(names[7])["b"]._link is None
        assert site.links_to(names[-1])["b"]._link is not None
        assert all(site.links_to(name)["b"]._link is not None for name in names[:7])

    def test_an_address_waits_while_all_links_have_messages_and_operators_are_told(self) -> None:
        site, neighbour, names = self.crowded(1)
        origin = SiteOrigin()
        for number, name in enumerate(names[:-1]):
            site.grant(site.links_to(name)["b"], 10)
            site.groups[name].offer(origin, message(name), [number])
        site.pass_time(3 * NETWORK_LINK_TURN_S, neighbour)
        assert site.links_to(names[-1])["b"]._link is None
        (problem,) = network_problems(site.network)
        assert problem.name == "router network b"
        answer(site.links_to(names[0])["b"], 0, DeliveryState.ACCEPTED)
        site.pass_time(1.0, neighbour)
        assert site.links_to(names[-1])["b"]._link is not None
        site.grant(site.links_to(names[-1])["b"], 1)
        site.groups[names[-1]].offer(origin, message(names[-1]), [9_999])
        answer(site.links_to(names[-1])["b"], 0, DeliveryState.ACCEPTED)
        assert origin.answers[9_999] == "accepted"

    def test_a_look_at_the_credit_of_one_detaches_no_other(self) -> None:
        """A group looks at the credit of one link, and then of another: the first must still be there."""
        site = NetworkSite()
        neighbour = Neighbour(site, "b")
        names = [f"jobs/{number}" for number in range(NETWORK_LINKS_MAX + 1)]
        neighbour.say(statement("b", {"a": 1}, [f"a{name}" for name in names]))
        for name in names[:-1]:
            site.group(name)
        site.now_s += 2 * NETWORK_LINK_TURN_S
        site.group(names[-1])
        assert all(site.links_to(name)["b"]._link is not None for name in names[:-1])
        site.pass_time(NETWORK_LINK_TURN_S, neighbour)
        assert site.links_to(names[-1])["b"]._link is not None

    def test_branches_of_multicast_names_take_turns_too(self) -> None:
        site = NetworkSite()
        neighbour = Neighbour(site, "b")
        neighbour.say(statement("b", {"a": 1}, ["mnews/#"]))
        for number in range(NETWORK_LINKS_MAX + 1):
            site.network.sinks(f"news/{number}")
        assert not site.network.sinks(f"news/{NETWORK_LINKS_MAX}")
        site.pass_time(2 * NETWORK_LINK_TURN_S, neighbour)
        assert site.network.sinks(f"news/{NETWORK_LINKS_MAX}")
