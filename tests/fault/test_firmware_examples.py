"""Examples for devices against a real gateway: killed, unplugged and reset, they lose nothing and keep the order.

The campaign runs every example that this machine can run, all at one gateway. At full size, with five kills of the
gateway, 60 s without a network and two resets of each device (about two minutes):
``./waypost test tests/fault/test_firmware_examples.py -m slow``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest

from tests.fault.firmware.checker import judge_example
from tests.fault.firmware.clock_server import clock_server
from tests.fault.firmware.programs import EXAMPLES, PROGRAMS, ExampleProgram, folder_of, parameters, runnable
from tests.fault.firmware.site import CERTIFIED, WAIT_S, ExampleRun, ExampleSite, settings_at
from tests.fault.firmware.spool_file import read_spool, tear_slot, write_spool
from tests.support.certificates import Authority
from tests.support.node import PINNED
from tests.support.processes import free_port, wait_until

pytestmark = pytest.mark.timeout(300)
"""The campaign of all programs is the set-up of one test."""
AHEAD_S = 3600
"""Difference of a gateway's clock to that of this machine."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleSite]:
    with ExampleSite(tmp_path_factory.mktemp("site")) as running:
        yield running


@dataclass(frozen=True)
class CampaignResult:
    """Outcome of a campaign for one example."""

    exit_code: int
    stored: int
    readings: list[bytes]
    status: list[bytes]
    answers: list[paho.MQTTMessage]
    said: str


def campaign(site: ExampleSite, *, kills: int, resets: int, unplugged_s: float) -> dict[str, CampaignResult]:
    """Run all examples at once through kills of the gateway, a pulled cable, and resets of the devices."""
    runs = []
    for program in runnable():
        settings = settings_at(site, program, program.name, site.add_device(program.name))
        runs.append(ExampleRun(program, site.folder / program.name, settings).start())
    try:
        _disturb(site, runs, kills=kills, resets=resets, unplugged_s=unplugged_s)
        for run in runs:
            name = run.program.name
            site.command(name, b'{"interval_ms": 20, "id": "faster"}', answer_to=f"command-response/{name}/1")
            site.command(name, b'{"interval_ms": "soon", "id": 8}', correlation=b"c8")
            site.command(name, b'{"stop": true}')
        codes = {run.program.name: run.ended() for run in runs}
    finally:
        for run in runs:
            run.__exit__()
    arrived = site.collect()
    found = {}
    for run in runs:
        name = run.program.name
        answers = [*arrived[f"command-response/{name}/1"], *arrived[f"command-response/{name}"]]
        found[name] = CampaignResult(
            codes[name], run.spool.next, [each.payload for each in arrived[f"plant/{name}"]],
            [each.payload for each in arrived[f"status/{name}"]], answers, run.said(),
        )  # fmt: skip
    return found


def _disturb(site: ExampleSite, runs: list[ExampleRun], *, kills: int, resets: int, unplugged_s: float) -> None:
    for _ in range(kills):
        for run in runs:
            run.wait_acknowledged()
        site.kill_gateway()
    for _ in range(resets):
        for run in runs:
            run.wait_acknowledged()
            run.reset()
    for run in runs:
        run.wait_acknowledged()
    site.unplug(True)
    time.sleep(unplugged_s)  # the length of the outage is the point of the test
    for run in runs:
        run.wait_stored(5)
        run.reset()  # with readings that only the spool has
    for run in runs:
        run.wait_stored(5)
    site.unplug(False)
    for run in runs:
        run.wait_acknowledged()


@pytest.fixture(scope="module")
def small(site: ExampleSite) -> dict[str, CampaignResult]:
    return campaign(site, kills=1, resets=1, unplugged_s=0)


def hold(program: ExampleProgram, result: CampaignResult, boots: int) -> None:
    """Check that nothing was lost, that the order was kept, and what was told about the device."""
    verdict = judge_example(result.readings, result.stored)
    assert verdict.right, (verdict, result.said)
    assert verdict.boots == boots
    assert result.exit_code == 0, result.said
    assert result.status[0] == b"online"
    assert result.status[-1] == b"offline"
    if program.last_will:
        assert result.status.count(b"offline") >= boots, "the last will of each reset, and the end"


@pytest.mark.parametrize("program", parameters())
def test_example_loses_nothing_and_keeps_the_order(small: dict[str, CampaignResult], program: ExampleProgram) -> None:
    hold(program, small[program.name], boots=3)


@pytest.mark.parametrize("program", parameters())
def test_example_answers_commands(small: dict[str, CampaignResult], program: ExampleProgram) -> None:
    answers = {document.get("id"): (each, document) for each, document in _documents(small[program.name].answers)}
    obeyed, refused = answers["faster"], answers[8]
    assert (obeyed[1]["status"], obeyed[1]["interval_ms"]) == (200, 20)
    assert (refused[1]["status"], bool(refused[1]["error"])) == (400, True)
    assert obeyed[0].topic.endswith("/1") is program.answers_to_response_topic
    if program.answers_to_response_topic:
        assert ("status", "200") in obeyed[0].properties.UserProperty
    assert answers[None][1]["status"] == 200, "the command to stop is answered too"


def _documents(messages: list[paho.MQTTMessage]) -> Iterator[tuple[paho.MQTTMessage, dict[str, Any]]]:
    for message in messages:
        yield message, json.loads(message.payload)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_examples_survive_five_kills_a_minute_without_network_and_two_resets(tmp_path: Path) -> None:
    with ExampleSite(tmp_path) as own:
        results = campaign(own, kills=5, resets=2, unplugged_s=60)
    for name, result in results.items():
        print(f"{name}: {result.stored} stored, {judge_example(result.readings, result.stored)}")
    for program in runnable():
        hold(program, results[program.name], boots=4)


@pytest.mark.parametrize("program", parameters())
def test_example_takes_a_certificate_in_place_of_a_password(
    site: ExampleSite, tmp_path: Path, program: ExampleProgram
) -> None:
    if not program.listener.endswith("s"):
        pytest.skip("without TLS")
    issued = site.authority.issue(CERTIFIED, file=program.name)
    settings = settings_at(site, program, CERTIFIED, "") | {"CERTIFICATE": issued.certificate, "KEY": issued.key}
    with ExampleRun(program, tmp_path, settings) as run:
        run.wait_acknowledged()
        run.stop()
        assert run.ended() == 0, run.said()


@pytest.mark.parametrize("program", parameters())
def test_example_trusts_only_the_pinned_authority(site: ExampleSite, tmp_path: Path, program: ExampleProgram) -> None:
    if not program.listener.endswith("s"):
        pytest.skip("without TLS")
    other = Authority(tmp_path / "other", "another authority")
    settings = settings_at(site, program, "stranger", "x") | {"CA": other.certificate}
    with ExampleRun(program, tmp_path, settings) as run:
        link = site.links[program.listener]
        seen = link.connections
        wait_until(lambda: link.connections >= seen + 3, timeout_s=WAIT_S, what="it tries again")
        run.wait_stored(5)
        assert run.spool.acknowledged == 0, run.said()
        assert "connected" not in run.said().replace("disconnected", "")


@pytest.mark.parametrize("program", parameters())
def test_example_names_the_next_step_for_a_wrong_password(
    site: ExampleSite, tmp_path: Path, program: ExampleProgram
) -> None:
    with ExampleRun(program, tmp_path, settings_at(site, program, f"unknown-{program.name}", "wrong")) as run:
        run.wait_said("waypost user rotate")
        run.wait_stored(3)
        assert run.spool.acknowledged == 0


@pytest.mark.parametrize("program", parameters())
def test_example_takes_the_time_from_the_gateway(site: ExampleSite, tmp_path: Path, program: ExampleProgram) -> None:
    def times() -> list[int]:
        contents = (json.loads(slot.content) for slot in run.spool.slots.values())
        return [each["at"] for each in contents if "at" in each]

    with clock_server(AHEAD_S) as port:
        settings = settings_at(site, program, "clock", "x") | {"TIME_URL": f"http://127.0.0.1:{port}"}
        with ExampleRun(program, tmp_path, settings) as run:
            wait_until(times, timeout_s=WAIT_S, what="readings have a time")
            assert min(times()) > time.time() + AHEAD_S - WAIT_S


def offline(program: ExampleProgram, folder: Path, **settings: object) -> ExampleRun:
    """Return a device that cannot reach any gateway."""
    common = {"HOST": "127.0.0.1", "PORT": free_port(), "DEVICE": "alone", "INTERVAL_MS": 10}
    return ExampleRun(program, folder, common | settings)


@pytest.mark.parametrize("program", parameters())
def test_full_spool_drops_the_oldest(tmp_path: Path, program: ExampleProgram) -> None:
    with offline(program, tmp_path, SPOOL_READINGS=4) as run:
        run.wait_stored(10)
    spool = run.spool
    assert sorted(spool.slots)[-4:] == list(range(spool.next - 4, spool.next))
    assert len(spool.slots) in (4, 5), "at a kill between both, the new one is there and the oldest too"
    if program.has_spool_file:
        assert spool.capacity == 4
    assert spool.acknowledged >= spool.next - 5, "readings that were dropped are not waited for"


@pytest.mark.parametrize("program", parameters(has_spool_file=True))
def test_torn_slot_is_written_again(tmp_path: Path, program: ExampleProgram) -> None:
    with offline(program, tmp_path) as run:
        run.wait_stored(5)
    last = run.spool.next - 1
    tear_slot(run.spool_path, last)
    with run:
        run.wait_stored(3)
    boots = [json.loads(slot.content)["boot"] for _, slot in sorted(run.spool.slots.items())]
    assert len(set(boots[:last])) == 1
    assert len({*boots[last:]}) == 1
    assert boots[last] != boots[last - 1], "its number was given again, as it never counted as stored"


@pytest.mark.parametrize("program", parameters())
def test_file_that_is_no_spool_is_left_alone(tmp_path: Path, program: ExampleProgram) -> None:
    run = offline(program, tmp_path)
    run.spool_path.write_bytes(b"a letter")
    with run:
        assert run.ended() == 2
    assert run.spool_path.read_bytes() == b"a letter"
    assert str(run.spool_path) in run.said()


@pytest.mark.parametrize("program", parameters(has_spool_file=True))
def test_spool_of_another_program_is_delivered_first(
    site: ExampleSite, tmp_path: Path, program: ExampleProgram
) -> None:
    """The format is one contract: a device may change its program and keeps its readings."""
    name = f"heir-{program.name}"
    contents = [json.dumps({"device": name, "boot": "before", "seq": number}).encode() for number in range(7, 13)]
    run = ExampleRun(program, tmp_path, settings_at(site, program, name, site.add_device(name)))
    write_spool(run.spool_path, 512, contents, first=7, acknowledged=9)
    with run:
        run.wait_acknowledged(5)
        run.stop()
        assert run.ended() == 0, run.said()
    arrived = [each.payload for each in site.collect()[f"plant/{name}"]]
    assert arrived[:4] == contents[2:], "those below the watermark were acknowledged before"
    assert [json.loads(each)["seq"] for each in arrived[4:6]] == [13, 14]
    assert read_spool(run.spool_path).capacity == 512


class TestChecker:
    """The checker sees each fault, so the campaign cannot pass by looking away."""

    @staticmethod
    def reading(number: int, boot: str = "a") -> bytes:
        return json.dumps({"seq": number, "boot": boot}).encode()

    def test_copies_are_allowed(self) -> None:
        verdict = judge_example([self.reading(each) for each in (0, 1, 2, 1, 2, 3)], 4)
        assert (verdict.right, verdict.copies) == (True, 2)

    @pytest.mark.parametrize(
        ("numbers", "stored", "fault"),
        [((0, 2, 3), 4, "lost"), ((0, 1), 3, "lost"), ((0, 2, 1), 3, "disordered")],
    )
    def test_faults_are_seen(self, numbers: tuple[int, ...], stored: int, fault: str) -> None:
        verdict = judge_example([self.reading(each) for each in numbers], stored)
        assert not verdict.right
        assert getattr(verdict, fault)

    def test_number_that_was_given_twice_is_seen(self) -> None:
        assert judge_example([self.reading(0), self.reading(0, "b")], 1).changed == [0]


def test_each_program_has_a_page_and_a_row_in_the_table() -> None:
    assert len({each.name for each in PROGRAMS}) == len(PROGRAMS)
    table = (EXAMPLES / "README.md").read_text()
    for program in PROGRAMS:
        folder = folder_of(program)
        assert (folder / "README.md").exists(), program.name
        assert f"]({folder.name}/README.md)" in table, program.name


@pytest.mark.parametrize("library", ["mqtt", "rhea"])
def test_node_runs_the_pinned_library(library: str) -> None:
    """The tests take the libraries from the packages of the tests; the example pins the same releases."""
    pins = [json.loads((folder / "package.json").read_text()) for folder in (EXAMPLES / "nodejs", PINNED)]
    assert pins[0]["dependencies"][library] == pins[1]["dependencies"][library]
    lock = json.loads((EXAMPLES / "nodejs" / "package-lock.json").read_text())["packages"]
    assert lock[f"node_modules/{library}"]["version"] == pins[0]["dependencies"][library]
    assert all(each.get("integrity") for name, each in lock.items() if name), "every package has a hash"
