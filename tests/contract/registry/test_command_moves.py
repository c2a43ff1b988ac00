"""Commands follow their devices in the registry, on SQLite and on PostgreSQL: once, and in order."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from bridge.command import UNKNOWN_DEVICE, OnlineReason
from cloud.hub.commands.service import Draft, _over
from cloud.hub.limits import DOUBTED_ANSWER_S
from cloud.hub.registry import command_moves
from cloud.hub.registry.command_moves import (
    LEFT,
    RETRY_S,
    RETRY_S_MAX,
    sending_name,
    split_sending,
    times_returned,
)
from cloud.hub.registry.commands import CommandNews, CommandRecord, Commands, CommandState
from cloud.hub.registry.devices import NewDeviceRow, RegisteredDevices, TenantLimits
from cloud.hub.registry.events import utc_us
from cloud.hub.registry.known_numbers import DOUBTED, leave_known_numbers
from cloud.hub.registry.opening import open_registry
from tests.contract.registry.conftest import Place

SECOND = 1_000_000
TTL_S = 60.0
GATEWAYS = ("hall", "roof", "yard")


class MovingSite:
    """Registry with gateways, devices and commands of tenant acme."""

    def __init__(self, place: Place, commands: Commands, devices: RegisteredDevices) -> None:
        self.place = place
        self.commands = commands
        self.devices = devices
        self.now_us = SECOND

    def row(self, device: str, gateways: Sequence[str], *, enabled: bool = True, selector: str = "") -> NewDeviceRow:
        waypost = {"gateways": list(gateways), "selector": selector}
        document = msgspec.json.encode({"enabled": enabled, "ext": {"waypost": waypost}}).decode()
        return NewDeviceRow("acme", device, document, [], self.now_us, "ann")

    def add(self, *gateways: str, device: str = "cart") -> None:
        self.devices.add(self.row(device, gateways), TenantLimits("acme", lambda _row: 100))

    def move(self, *gateways: str, device: str = "cart", enabled: bool = True, selector: str = "") -> None:
        self.devices.replace(self.row(device, gateways, enabled=enabled, selector=selector), lambda _there: None)

    def send(
        self, name: str, gateway: str = "hall", device: str = "cart", *, follows: bool = True, most: int = 100
    ) -> CommandRecord:
        """`follows`: False for one of the commands of a selector. `most`: limit of open commands."""
        record = Draft("acme", gateway, device, name, b"", None, TTL_S).record(self.now_us)
        return self.commands.add(record, gateway_max=most, tenant_max=100, follows=follows)

    def restore(self, *, is_move: bool = False) -> None:
        """Take the registry for an older copy of another one."""
        with contextlib.closing(open_registry(self.place.url).database) as database:
            database.transaction(lambda tx: leave_known_numbers(tx, is_move=is_move))

    def take(self, gateway: str) -> list[str]:
        """Return the names of the commands that leave for a gateway."""
        return [each.name for each in self.commands.take(("acme", gateway), (), 9, self.now_us)]

    def tell(self, command: CommandRecord, state: CommandState, why: str = "", *, returned: bool = False) -> None:
        """Let the gateway that has a command tell about its last sending."""
        there = self.get(command)
        moves = times_returned(there.moves)
        news = CommandNews(there.id, *there.key, there.device, self.now_us, state, why, returned=returned, moves=moves)
        self.commands.keep([each for each, _ in self.commands.effective_news([news])])

    def give_back(self, command: CommandRecord, why: str = "its device left") -> None:
        self.tell(command, CommandState.REJECTED, why, returned=True)

    def get(self, command: CommandRecord) -> CommandRecord:
        found = self.commands.get(command.id)
        assert found is not None
        return found

    def place_of(self, command: CommandRecord) -> tuple[str, str, str | None]:
        found = self.get(command)
        return found.state, found.gateway, found.sent_to


@pytest.fixture
def site(make_place: Callable[[], Place]) -> Iterator[MovingSite]:
    place = make_place()
    place.open().close()
    with contextlib.closing(open_registry(place.url).database) as database:
        place.execute("INSERT INTO tenants (name, created_at) VALUES ('acme', 1)")
        for name in GATEWAYS:
            place.execute(
                "INSERT INTO gateways (tenant, name, first_seen, last_seen, connected, remote, generation, landed) "
                "VALUES ('acme', :name, 1, 1, :no, '', 0, 0)",
                name=name,
                no=False,
            )
        with contextlib.closing(Commands(place.url)) as commands:
            yield MovingSite(place, commands, RegisteredDevices(database))


def test_waiting_commands_move_with_the_registry(site: MovingSite) -> None:
    site.add("hall")
    sent = [site.send(name) for name in ("a", "b")]
    site.move("roof")
    assert [site.place_of(each) for each in sent] == [("waiting", "roof", "hall")] * 2
    assert site.take("hall") == []
    assert site.take("roof") == ["a"]
    site.tell(sent[0], CommandState.QUEUED)
    assert site.take("roof") == ["b"], "one after the other"


def test_a_command_that_a_gateway_may_have_holds_later_ones(site: MovingSite) -> None:
    site.add("hall")
    first, second = site.send("a"), site.send("b")
    assert site.take("hall") == ["a"]
    site.tell(first, CommandState.QUEUED)
    site.move("roof")
    assert site.place_of(second) == ("waiting", "roof", "hall")
    third = site.send("c", "roof")
    assert site.take("roof") == [], "hall may deliver the first one"
    assert [site.commands.describe(each.id, site.now_us) for each in (first, second, third)] == [
        site.get(first),
        *(site.get(each)._replace(reason=f"waits for command {first.id} at hall") for each in (second, third)),
    ]
    site.give_back(first)
    assert site.place_of(first) == ("waiting", "roof", "hall")
    assert site.get(first).reason == "moved with its device from hall"
    for each, name in ((first, "a"), (second, "b"), (third, "c")):
        assert site.commands.describe(each.id, site.now_us) == site.get(each)
        assert site.take("roof") == [name]
        site.tell(each, CommandState.QUEUED)


def test_a_command_says_what_it_waits_for(site: MovingSite) -> None:
    site.add("hall")
    first, second, local = site.send("a"), site.send("b"), site.send("c", device="local")
    reasons = {first: "", second: f"waits for command {first.id} at hall", local: ""}
    for _ in range(2):  # the first one waits, and is on its way
        found = {each: site.commands.describe(each.id, site.now_us) for each in reasons}
        assert {each: there.reason for each, there in found.items() if there is not None} == reasons
        site.take("hall")
    assert site.commands.describe("unknown", site.now_us) is None


def test_commands_for_a_user_of_a_gateway_wait_for_no_former_device_of_its_name(site: MovingSite) -> None:
    site.add("hall", "roof")
    site.send("a")
    site.take("hall")
    site.send("b", "roof")
    site.devices.remove("acme", "cart", lambda _: None)
    assert site.take("roof") == ["b"]


def test_a_delivered_command_is_not_repeated(site: MovingSite) -> None:
    site.add("hall")
    first, second = site.send("a"), site.send("b")
    site.take("hall")
    site.move("roof")
    site.tell(first, CommandState.DELIVERED)
    assert site.take("roof") == ["b"]
    site.give_back(first)
    assert site.get(first).state == "delivered"
    assert site.get(second).state == "sent"


def test_an_unreachable_gateway_holds_until_the_time_to_live_ends(site: MovingSite) -> None:
    site.add("hall")
    first = site.send("a")
    site.take("hall")
    site.now_us += 30 * SECOND
    site.send("b")
    site.move("roof")
    site.now_us += 29 * SECOND
    assert site.take("roof") == []
    site.now_us += SECOND
    assert site.take("roof") == ["b"], "the first one cannot be delivered any more"
    assert site.get(first).state == "sent", "its gateway says what became of it"


def test_news_about_a_former_sending_is_ignored(site: MovingSite) -> None:
    site.add("hall")
    sent = site.send("a")
    site.take("hall")
    site.give_back(sent)  # it was away for a moment, and is back
    assert site.place_of(sent) == ("waiting", "hall", None)
    [again] = site.commands.take(("acme", "hall"), (), 9, site.now_us)
    assert sending_name(again.id, again.moves) == f"{sent.id}~1", "hall knows the former name"
    for state, returned in ((CommandState.REJECTED, True), (CommandState.QUEUED, False)):
        old = CommandNews(sent.id, *sent.key, sent.device, 5, state, "old", returned=returned, moves=0)
        assert site.commands.keep([old]) == []
    assert site.get(sent).state == "sent"


def test_a_gateway_without_the_device_yet_gets_the_command_later(site: MovingSite) -> None:
    """Devices travel over a link of their own, and a command may be faster."""
    site.add("roof")
    first = site.send("a", "roof")
    site.send("b", "roof")
    waits: list[float] = []
    for _ in range(8):
        assert site.take("roof") == ["a"]
        site.give_back(first, f"{UNKNOWN_DEVICE}cart")
        began = site.now_us
        while not site.commands.take(("acme", "roof"), (), 1, site.now_us) and len(waits) < 8:
            site.now_us += SECOND
        waits.append((site.now_us - began) / SECOND)
        site.place.execute("UPDATE commands SET expires_at = expires_at + 100000000")
    assert waits[0] == 2 * RETRY_S
    assert waits[-1] == RETRY_S_MAX
    site.tell(first, CommandState.QUEUED)
    assert site.take("roof") == ["b"]


@pytest.mark.parametrize("after", [(), ("roof", "yard")])
def test_a_command_that_can_go_nowhere_is_rejected(site: MovingSite, after: tuple[str, ...]) -> None:
    site.add("hall")
    sent = site.send("a")
    site.take("hall")
    site.move(*after)
    site.give_back(sent)
    assert site.get(sent).state == "rejected"
    assert site.get(sent).reason == "its device left"


def test_commands_for_a_disabled_or_unknown_device_stay(site: MovingSite) -> None:
    site.add("hall")
    sent = site.send("a"), site.send("b", device="local")
    site.move("roof", enabled=False)
    assert [site.place_of(each) for each in sent] == [("waiting", "hall", None)] * 2
    assert site.take("hall") == ["a", "b"]
    for each in sent:
        site.give_back(each)
        assert site.get(each).state == "rejected"


def test_a_new_command_goes_where_the_device_is(site: MovingSite) -> None:
    site.add("hall")
    site.move("roof")
    assert site.place_of(site.send("a")) == ("waiting", "roof", "hall")
    assert site.place_of(site.send("b", "yard")) == ("waiting", "yard", None), "yard may have a user of this name"


def test_a_device_of_a_selector_is_at_the_gateway_with_its_labels(site: MovingSite) -> None:
    for gateway in ("hall", "roof"):
        site.place.execute(
            "INSERT INTO labels (tenant, gateway, key, value) VALUES ('acme', :name, 'site', :name)", name=gateway
        )
    site.add("hall")
    sent = site.send("a")
    site.move(selector="site=roof")
    assert site.place_of(sent) == ("waiting", "roof", "hall")
    site.move(selector="site")
    assert site.place_of(sent) == ("waiting", "roof", "hall"), "it may still be there"


def test_a_command_that_comes_home_has_not_moved(site: MovingSite) -> None:
    site.add("hall")
    sent = site.send("a")
    for there in ("roof", "yard", "hall"):
        site.move(there)
    assert site.place_of(sent) == ("waiting", "hall", None)


def test_a_device_that_is_back_waits_for_what_its_gateway_gives_back(site: MovingSite) -> None:
    """The gateway may have received the device's removal, and its receipt may be on the way."""
    site.add("hall")
    first = site.send("a")
    site.take("hall")
    site.move("roof")
    assert site.get(first).reason == LEFT
    site.tell(first, CommandState.QUEUED)
    assert site.get(first).reason == LEFT
    site.move("hall")
    site.send("b")
    assert site.take("hall") == []
    site.give_back(first)
    assert site.take("hall") == ["a"]


def test_blocked_commands_leave_room_for_others(site: MovingSite) -> None:
    site.add("hall")
    site.send("a")
    site.take("hall")
    site.move("roof")
    for number in range(9):
        site.send(f"b{number}", "roof")
    site.send("other", "roof", device="fan")
    assert site.take("roof") == ["other"]


def test_an_outcome_that_was_told_is_stored_as_it_was_told(site: MovingSite) -> None:
    """An application gets a rejection before it is stored; the device may be somewhere by then."""
    site.add("hall")
    sent = site.send("a")
    site.take("hall")
    site.move()
    news = CommandNews(sent.id, *sent.key, sent.device, 5, CommandState.REJECTED, "left", returned=True, moves=0)
    [(told, after)] = site.commands.effective_news([news])
    assert after.state == "rejected"
    site.move("roof")
    site.commands.keep([told])
    assert site.get(sent).state == "rejected"


def test_a_device_at_several_gateways_gets_what_is_sent_to_each(site: MovingSite) -> None:
    site.add("hall", "roof")
    first = site.send("a")
    assert site.take("hall") == ["a"]
    site.tell(first, CommandState.QUEUED)
    second = site.send("b", "roof")
    assert site.take("roof") == ["b"], "it has not left hall, and may be at roof"
    site.tell(second, CommandState.QUEUED)
    site.send("c", "roof")
    site.move("roof")
    assert site.take("roof") == [], "it has left hall"


def test_a_command_to_many_gateways_stays_at_each(site: MovingSite) -> None:
    site.add("hall")
    site.move("roof")
    sent = site.send("a", follows=False)
    assert site.place_of(sent) == ("waiting", "hall", None)
    site.take("hall")
    site.give_back(sent)
    assert site.get(sent).state == "rejected", "roof has one of its own"


@pytest.mark.parametrize("moves", [None, -1])
def test_a_command_that_stays_is_there_again_with_its_device(site: MovingSite, moves: int | None) -> None:
    """A command of an older version has no moves."""
    site.add("hall")
    sent = site.send("a", follows=False)
    assert site.get(sent).moves == -1
    site.place.execute("UPDATE commands SET moves = :moves", moves=moves)
    site.take("hall")
    for gateway in ("roof", "hall"):
        site.move(gateway)
    site.give_back(sent)
    assert site.place_of(sent) == ("waiting", "hall", None)
    [again] = site.commands.take(("acme", "hall"), (), 9, site.now_us)
    assert sending_name(again.id, again.moves) == f"{sent.id}~1", "hall knows the former name"
    site.give_back(sent, f"{UNKNOWN_DEVICE}cart")
    assert site.take("hall") == [], "its device comes over another link"
    site.now_us += 8 * SECOND
    assert site.take("hall") == ["a"]
    site.tell(sent, CommandState.DELIVERED)
    assert site.get(sent).state == "delivered"


def test_a_command_that_stays_does_not_move_later(site: MovingSite) -> None:
    """The other gateway has one of its own."""
    site.add("hall")
    sent = site.send("a", follows=False)
    site.take("hall")
    site.give_back(sent)
    site.move("roof")
    later = site.send("b", "roof")
    assert (site.place_of(sent), site.take("roof")) == (("waiting", "hall", None), ["b"]), "it holds none elsewhere"
    site.tell(later, CommandState.QUEUED)
    assert site.take("hall") == ["a"]
    site.give_back(sent, f"{UNKNOWN_DEVICE}cart")
    assert site.place_of(sent) == ("rejected", "hall", None)


def test_commands_by_name_and_by_labels_keep_their_order(site: MovingSite) -> None:
    site.add("hall")
    sent = [site.send(name, follows=name != "b") for name in ("a", "b", "c")]
    for each in sent:
        assert site.take("hall") == [each.name]
        assert site.commands.take(("acme", "hall"), (each.id,), 9, site.now_us) == []
        site.tell(each, CommandState.QUEUED)


def test_a_command_that_is_sent_while_its_device_is_disabled_keeps_its_order(site: MovingSite) -> None:
    site.add("hall")
    site.send("a")
    site.take("hall")
    site.move("roof", enabled=False)
    later = site.send("b", "roof")
    site.move("roof")
    assert (site.get(later).moves, site.take("roof")) == (0, []), "hall may have the first one"


def test_commands_of_a_device_that_is_back_among_several_gateways_do_not_wait(site: MovingSite) -> None:
    """A correction of its registration, while one of the gateways is away: that gives nothing back."""
    site.add("hall", "roof")
    first = site.send("a")
    site.take("hall")
    site.tell(first, CommandState.QUEUED)
    site.move("roof")
    assert (site.get(first).reason, site.send("b", "roof").name, site.take("roof")) == (LEFT, "b", [])
    site.move("hall", "roof")
    site.send("c", "hall")
    assert (site.get(first).reason, site.take("roof"), site.take("hall")) == ("", ["b"], ["c"])
    site.give_back(first)
    assert site.place_of(first) == ("waiting", "hall", None), "hall has seen the change"


@pytest.mark.parametrize("queued_first", [True, False])
def test_a_late_refusal_of_a_former_sending_is_ignored(site: MovingSite, queued_first: bool) -> None:
    """The line was lost before the answer was stored, and the gateway accepted the command over the next one."""
    site.add("hall")
    sent = site.send("a")
    [former] = site.commands.take(("acme", "hall"), (), 1, site.now_us)
    [again] = site.commands.take(("acme", "hall"), (), 1, site.now_us)
    assert (former.id, again.id) == (sent.id, sent.id)
    refused = CommandNews(sent.id, *sent.key, sent.device, site.now_us, CommandState.REJECTED, UNKNOWN_DEVICE)
    refused = refused._replace(returned=True, moves=0, sent_at=former.changed_at)
    queued = CommandNews(sent.id, *sent.key, sent.device, site.now_us, CommandState.QUEUED, moves=0)
    site.commands.keep([queued, refused] if queued_first else [refused, queued])
    assert site.get(sent).state == "queued"


def test_a_command_that_waits_in_an_older_copy_goes_to_its_gateway_first(site: MovingSite) -> None:
    """The original may have sent it: its gateway recognises the name, and no other one does."""
    site.now_us = utc_us()
    site.add("hall")
    sent = site.send("a")
    site.restore()
    site.move("roof")
    assert site.place_of(sent) == ("sent", "hall", None)
    assert (site.take("roof"), site.take("hall")) == ([], ["a"])


@pytest.mark.parametrize("is_move", [False, True])
def test_a_command_that_waits_in_a_moved_registry_or_is_over_still_expires(site: MovingSite, is_move: bool) -> None:
    """Nothing was sent after the copy that a move makes; what is over at a restore needs no gateway to end."""
    site.now_us = utc_us() if is_move else SECOND
    site.add("hall")
    sent = site.send("a")
    site.restore(is_move=is_move)
    assert site.place_of(sent) == ("waiting", "hall", None)


def end_of_doubt(site: MovingSite, sent: CommandRecord) -> None:
    """Let the time of a command of a restored registry end, as the hub does."""
    site.now_us = sent.expires_at + int(DOUBTED_ANSWER_S * SECOND)
    assert site.commands.doubted(site.now_us - 1, 9) == []
    found = site.commands.doubted(site.now_us, 9)
    site.commands.keep([_over(each, site.now_us) for each in found])
    assert [each.id for each in found] == [sent.id]


@pytest.mark.parametrize(("copied", "again"), [("waiting", ""), ("waiting", "queued"), ("sent", ""), ("queued", "")])
def test_an_outcome_that_only_the_original_has_is_unknown(site: MovingSite, copied: str, again: str) -> None:
    """The gateway delivered and reported the command after the copy: it accepts a repeat without a report."""
    site.now_us = utc_us()
    site.add("hall")
    sent = site.send("a", most=1)
    if copied != "waiting":
        site.take("hall")
    if copied == "queued":
        site.tell(sent, CommandState.QUEUED)
    site.restore()
    if again:
        site.take("hall")
    if again == "queued":
        site.tell(sent, CommandState.QUEUED)
    end_of_doubt(site, sent)
    assert (site.get(sent).state, site.get(sent).reason_code) == ("expired", "outcome-unknown")
    assert site.send("b", most=1).state == "waiting", "there is room again"
    site.tell(sent, CommandState.QUEUED)
    assert site.get(sent).state == "expired"
    site.tell(sent, CommandState.DELIVERED)
    assert (site.get(sent).state, site.get(sent).reason_code) == ("delivered", None), "the report counts"


@pytest.mark.parametrize("gateways", [("roof",), ("roof", "hall")])
def test_a_command_of_a_restored_registry_ends_wherever_its_device_goes(
    site: MovingSite, gateways: tuple[str, ...]
) -> None:
    site.now_us = utc_us()
    site.add("hall")
    sent = site.send("a")
    site.restore()
    for gateway in gateways:
        site.move(gateway)
    assert site.get(sent).reason == DOUBTED
    end_of_doubt(site, sent)


def test_a_command_of_a_restored_registry_is_delivered_as_others(site: MovingSite) -> None:
    site.now_us = utc_us()
    site.add("hall")
    sent = site.send("a")
    site.restore()
    assert site.take("hall") == ["a"]
    for state in (CommandState.QUEUED, CommandState.DELIVERED):
        site.tell(sent, state)
    assert (site.get(sent).state, site.get(sent).reason) == ("delivered", "")
    site.now_us = sent.expires_at + int(DOUBTED_ANSWER_S * SECOND)
    assert site.commands.doubted(site.now_us, 9) == []


def test_a_command_that_waits_in_a_restored_registry_may_have_been_delivered(site: MovingSite) -> None:
    """A command that goes nowhere else still waits, and can be cancelled."""
    site.now_us = utc_us()
    sent = site.send("a", device="local")
    site.restore()
    assert site.place_of(sent) == ("waiting", "hall", None)
    [over] = site.commands.over(sent.expires_at, 9)
    news = _over(over, sent.expires_at)
    assert (news.state, news.code, news.waiting) == (CommandState.EXPIRED, OnlineReason.OUTCOME_UNKNOWN, True)
    cancelled = site.commands.cancel(sent.id, "ann", site.now_us)
    assert cancelled is not None
    assert cancelled.state == "cancelling"


def test_an_online_command_of_a_restored_registry_ends_by_its_own_rule(site: MovingSite) -> None:
    site.now_us = utc_us()
    site.add("hall")
    draft = Draft("acme", "hall", "cart", "now", b"", None, 1.0, online=True)
    sent = site.commands.add(draft.record(site.now_us), gateway_max=9, tenant_max=9, connected=True)
    site.restore()
    assert (site.place_of(sent), site.get(sent).reason) == (("waiting", "hall", None), "")


def test_only_changes_that_may_free_a_command_lead_to_a_look(site: MovingSite) -> None:
    """A look reads all that waits at a gateway: one for each outcome would hold up other commands."""
    site.add("hall")
    first, hall = site.send("a"), {("acme", "hall")}

    def after(state: CommandState | None, *, response: bytes | None = None, returned: bool = False) -> set[Any]:
        site.now_us += 1
        news = CommandNews(first.id, *site.get(first).key, "cart", site.now_us, state, response=response)
        return site.commands.next_gateways(site.commands.keep([news._replace(returned=returned)]))

    site.take("hall")
    assert after(CommandState.QUEUED) == set(), "nothing waits"
    site.send("b")
    site.send("c")
    site.take("hall")
    assert (site.take("hall"), after(None, response=b"done")) == (["b"], set())
    assert after(CommandState.REJECTED, returned=True) == hall
    site.take("hall")
    assert after(CommandState.DELIVERED) == hall
    local = site.send("d", device="local")
    news = CommandNews(local.id, *local.key, "local", site.now_us, CommandState.QUEUED)
    assert site.commands.next_gateways(site.commands.keep([news])) == set(), "it holds none"


def test_many_returned_commands_read_the_places_of_their_device_once(
    site: MovingSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add("hall")
    sent = []
    for _ in range(9):
        sent.append(site.send("a"))
        site.take("hall")
        site.tell(sent[-1], CommandState.QUEUED)
    site.move("roof")
    reads: list[str] = []
    read = command_moves.registered_places

    def counted(tx: sa.Connection, tenant: str, name: str, **more: bool) -> command_moves.RegisteredPlaces | None:
        reads.append(name)
        return read(tx, tenant, name, **more)

    monkeypatch.setattr(command_moves, "registered_places", counted)
    news = [
        CommandNews(each.id, *each.key, each.device, 5, CommandState.REJECTED, "left", returned=True, moves=0)
        for each in sent
    ]
    assert len(site.commands.keep(news)) == 9
    assert reads == ["cart"]


def test_looks_read_no_commands_of_others(site: MovingSite, request: pytest.FixtureRequest) -> None:
    """Looks come each second, so an index leads them to the gateway, to the device or to the move."""
    if "sqlite" not in request.node.name:
        pytest.skip("the plan of a small table says nothing on PostgreSQL")
    site.add("hall")
    first = site.send("a")
    site.take("hall")
    site.tell(first, CommandState.QUEUED)
    site.move("roof")
    site.send("b", "roof")
    queries: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, query: str, parameters: Any, *_: Any) -> None:
        if query.startswith("SELECT") and "FROM commands" in query:
            queries.append((query, parameters))

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", note)
    try:
        site.take("roof")
        site.commands.newest_move()
        site.commands.gateways_moved_to(1)
        site.move("yard")
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", note)
    assert len(queries) >= 6
    known = ("(state=? AND tenant=? AND gateway=?", "(tenant=? AND device=? AND state=?", "commands_moved", "(rowid=?")
    with contextlib.closing(sqlite3.connect(str(site.place.url.database))) as connection:
        for query, parameters in queries:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", parameters)]
            reads = [step for step in plan if " commands" in step]
            assert reads
            assert all(any(index in step for index in known) for step in reads), (query, plan)


def test_a_look_takes_no_more_than_its_limit(site: MovingSite) -> None:
    devices = [f"fan{number}" for number in range(4)]
    for device in devices:
        site.add("hall", device=device)
        site.send(f"{device} held", device=device)
    assert len(site.take("hall")) == 4
    for device in devices[:2]:
        site.move("roof", device=device)
    for device in (*devices[:2], "local", *devices):
        gateway = "roof" if device in devices[:2] else "hall"
        site.send(device, gateway, device=device)
    key, sent = ("acme", "hall"), ["fan2 held", "fan3 held", "local"]
    found = site.commands.take(key, (), 3, site.now_us)
    assert [each.name for each in found] == ["fan0 held", "fan1 held", "fan2 held"], "repeated, in order"
    but = [each.id for each in found]
    assert [each.name for each in site.commands.take(key, but, 2, site.now_us)] == sent[1:]
    assert site.take("roof") == [], "hall may have the first ones"


def test_a_gateway_with_held_commands_is_looked_at_again(site: MovingSite) -> None:
    site.add("hall")
    first = site.send("a")
    site.take("hall")
    assert site.commands.held_gateways(9) == []
    site.move("roof")
    site.send("b", "roof")
    site.take("roof")
    site.take("yard")
    assert site.commands.held_gateways(9) == [("acme", "roof")]
    assert site.commands.held_gateways(9) == [], "until its next look"
    site.take("roof")
    site.tell(first, CommandState.DELIVERED)
    assert site.take("roof") == ["b"]
    assert site.commands.held_gateways(9) == []


def test_moves_have_rising_numbers(site: MovingSite) -> None:
    """Each hub finds by these numbers the gateways that have more to get."""
    site.add("hall")
    first = site.send("a")
    assert (site.commands.newest_move(), site.commands.gateways_moved_to(0)) == (0, [])
    site.move("roof")
    before = site.commands.newest_move()
    assert site.commands.gateways_moved_to(before - 1) == [("acme", "roof")]
    site.take("roof")
    site.move("yard")
    site.give_back(first)
    assert site.commands.newest_move() > before
    assert site.commands.gateways_moved_to(before) == [("acme", "yard")]


def test_an_online_command_never_goes_elsewhere(site: MovingSite) -> None:
    """Its sender wants the device at one gateway, now."""
    site.add("hall")
    site.send("a")
    draft = Draft("acme", "hall", "cart", "now", b"", None, TTL_S, online=True)
    bounds = {"gateway_max": 9, "tenant_max": 9}
    waits = site.commands.add(draft.record(site.now_us), **bounds, connected=True)
    site.move("roof")
    assert site.place_of(waits) == ("waiting", "hall", None)
    moved = site.commands.add(draft.record(site.now_us), **bounds, connected=True)
    assert site.place_of(moved) == ("waiting", "hall", None), "its gateway refuses it"
    assert site.take("hall") == ["now", "now"], "it waits for no other one"
    assert site.take("roof") == ["a"], "no other one waits for it"
    assert site.take("hall") == [], "it is sent once"
    site.give_back(waits)
    assert site.place_of(waits) == ("rejected", "hall", None)
    site.tell(moved, CommandState.QUEUED)
    site.tell(moved, CommandState.EXPIRED)
    assert site.place_of(moved) == ("expired", "hall", None)


def test_an_online_command_that_comes_back_late_is_rejected(site: MovingSite) -> None:
    site.add("hall")
    draft = Draft("acme", "hall", "cart", "now", b"", None, 1.0, online=True)
    sent = site.commands.add(draft.record(site.now_us), gateway_max=9, tenant_max=9, connected=True)
    site.take("hall")
    unknown = CommandNews(sent.id, *sent.key, sent.device, 5, CommandState.EXPIRED, code=OnlineReason.OUTCOME_UNKNOWN)
    site.commands.keep([unknown])
    assert site.get(sent).reason_code == "outcome-unknown"
    site.move("roof")
    site.give_back(sent)
    assert (*site.place_of(sent), site.get(sent).reason_code) == ("rejected", "hall", None, None)


def test_a_device_responds_from_where_it_is(site: MovingSite) -> None:
    site.add("hall")
    sent = site.send("a")
    site.take("hall")
    site.tell(sent, CommandState.DELIVERED)
    site.move("roof")
    for gateway, kept in (("yard", 0), ("roof", 1)):
        response = CommandNews(sent.id, "acme", gateway, "cart", 5, status=200, response=b"done")
        assert len(site.commands.keep([response])) == kept
    assert site.get(sent).response == b"done"


def test_a_command_that_waits_again_is_no_event(site: MovingSite) -> None:
    site.add("hall")
    sent = site.send("a")
    for gateway in ("hall", "roof"):
        site.move(gateway)
        site.now_us += 9 * SECOND
        assert site.take(gateway) == ["a"]
        site.give_back(sent, f"{UNKNOWN_DEVICE}cart")
    site.now_us += 30 * SECOND
    site.take("roof")
    site.tell(sent, CommandState.DELIVERED)
    rows = site.place.execute("SELECT data FROM events WHERE type = 'command.receipt'")
    assert len(rows) == 1


def test_reasons_that_rows_and_gateways_in_use_have() -> None:
    """The hub compares these texts: a change of one needs a column, or a code on the wire."""
    assert UNKNOWN_DEVICE == "unknown device here: "
    assert LEFT == "its device has moved, and this gateway has not given the command back yet"
    assert DOUBTED == "the registry was restored from an older copy, and the gateway may have had the command before"


@pytest.mark.parametrize(
    ("name", "split"), [("a", ("a", 0)), ("a~1", ("a", 1)), ("a~x", ("a~x", 0)), ("a.1", ("a.1", 0))]
)
def test_names_of_sendings(name: str, split: tuple[str, int]) -> None:
    assert split_sending(name) == split
    assert split_sending(sending_name("b", 12)) == ("b", 12)
