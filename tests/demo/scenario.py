"""The scenario from the first process to the last number. `accounting` and `facts` judge its result."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from edge.output.amounts import counted
from tests.demo import facts as verdict
from tests.demo.accounting import Account, account, total
from tests.demo.board import Board
from tests.demo.errors import DemoError
from tests.demo.facts import Event, Fact, Proved, Trial
from tests.demo.lake import Lake
from tests.demo.plan import CUT_GATEWAY, GATEWAYS, KILLED_GATEWAY, Timeline, devices
from tests.demo.processes import Child, Children
from tests.demo.stage import Stage
from tests.demo.watching import INTERVAL_S, Watcher

DRAINED_S_MAX = 60.0
PROVED_S_MAX = 60.0
UPLINKS_UP_S_MAX = 45.0
"""A gateway retries within half a minute after an outage of 20 s: that is its backoff, without intervention."""
AFTER_S_MIN = 8.0
"""Traffic after the uplink is restored, so that the drain happens under load."""
ANALYTICS_S_MAX = 600.0
"""20 s on an idle machine of two cores; a busy one needed more than 180 s."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the demo."""

    facts: Sequence[Fact]
    notes: Sequence[str]
    accounts: Sequence[Account]
    everything: Account
    report: Path

    @property
    def ok(self) -> bool:
        return verdict.passed(self.facts)


class Scenario:
    """Runs once on a stage; `play` returns the result and leaves hub and gateways running."""

    def __init__(self, folder: Path, board: Board, children: Children, timeline: Timeline) -> None:
        self._folder = folder
        self._board = board
        self._timeline = timeline
        self.stage = Stage(folder, board, children)
        self._lake = Lake(self.stage.lake)
        self._flowing_since = 0.0
        self._firmware = ""

    async def play(self) -> Outcome:
        """Run all phases. Raises DemoError when something failed to run."""
        await self._start()
        ports = {name: gateway.http for name, gateway in self.stage.gateways.items()}
        async with Watcher(self._board, self._lake, ports):
            await self._flow()
            trial = await self._trouble()
            drained_s = await self._drain()
            proved = None if drained_s is None else await self._prove()
        accounts, facts, notes = await self._verify(trial, drained_s, proved)
        report = await self._analyse()
        self._board.enter("done")
        return Outcome(facts, notes, accounts, total(accounts), report)

    # --- phases -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        board, stage = self._board, self.stage
        board.enter("start", "starting the hub")
        await stage.start_hub(GATEWAYS)
        board.doing = "starting two gateways"
        await asyncio.gather(*(stage.start_gateway(name) for name in GATEWAYS))
        board.say(f"hub and {len(GATEWAYS)} gateways serve; open their consoles while the demo runs:")
        board.say(f"hub {board.hub_console}")
        for gateway in board.gateways.values():
            board.say(f"{gateway.name} {gateway.console}")

    async def _flow(self) -> None:
        """Start the devices, without a fault."""
        board, stage = self._board, self.stage
        board.doing = "starting the devices"
        plans = devices(sensors=_has_sensors())
        await asyncio.gather(*(stage.start_device(plan) for plan in plans))
        self._firmware = await stage.start_firmware()
        await self._until(lambda: all(d.journal.sends for d in board.devices), 30, "not every device was acknowledged")
        await self._until(self._uplinks_up, UPLINKS_UP_S_MAX, "an uplink did not come up")
        self._flowing_since = time.monotonic()
        board.enter("flow", "devices publish, uplinks carry")
        board.say(f"{len(board.devices)} devices publish to {len(GATEWAYS)} gateways", "good")
        await self._at(self._timeline.cut)

    async def _trouble(self) -> Trial:
        """Cut one uplink, kill the other gateway under load, restart it, and then restore the uplink."""
        board, stage, timeline = self._board, self.stage, self._timeline
        relay = stage.gateways[CUT_GATEWAY].relay
        board.enter("cut uplink", f"{CUT_GATEWAY} stores, its devices notice nothing")
        await relay.close()
        cut_at, acknowledged_before = time.time(), self._acknowledged_by(CUT_GATEWAY)
        board.say(f"uplink of {CUT_GATEWAY} cut: connections reset, new ones refused", "bad")

        await self._at(timeline.kill)
        board.enter("kill gateway", f"devices of {KILLED_GATEWAY} keep their readings until it is back")
        epoch = board.gateways[KILLED_GATEWAY].epoch
        stage.kill_gateway(KILLED_GATEWAY)
        killed_at = time.time()
        board.say(f"{KILLED_GATEWAY} killed with SIGKILL under load", "bad")
        await self._at(timeline.restart)
        await stage.start_gateway(KILLED_GATEWAY)
        back_at = time.time()
        board.say(f"{KILLED_GATEWAY} serves again after {back_at - killed_at:.1f} s, its store recovered", "good")

        await self._at(timeline.restore)
        stored = self._acknowledged_by(CUT_GATEWAY) - acknowledged_before
        waiting = board.gateways[CUT_GATEWAY].backlog or 0
        await relay.open()
        restored_at = time.time()
        board.enter("restore", "the backlog drains while devices go on")
        board.say(f"uplink of {CUT_GATEWAY} restored after {restored_at - cut_at:.0f} s", "good")
        board.events += [
            Event(cut_at, f"{CUT_GATEWAY}: uplink cut", restored_at),
            Event(killed_at, f"{KILLED_GATEWAY}: killed with SIGKILL", back_at),
        ]
        await self._until(self._uplinks_up, UPLINKS_UP_S_MAX, "an uplink did not come back")
        back_s = time.time() - restored_at
        board.say(f"uplink of {CUT_GATEWAY} found its way back by itself after {back_s:.0f} s", "good")
        await self._at(max(timeline.stop, timeline.restore + back_s + AFTER_S_MIN))
        after = board.gateways[KILLED_GATEWAY].epoch
        return Trial(
            gateway_cut=CUT_GATEWAY,
            cut_s=restored_at - cut_at,
            acknowledged_meanwhile=stored,
            backlog_messages=waiting,
            gateway_killed=KILLED_GATEWAY,
            down_s=back_at - killed_at,
            epoch_kept=None if epoch is None or after is None else epoch == after,
        )

    async def _drain(self) -> float | None:
        """Stop the devices and wait until no message waits anywhere; return the seconds, or None if this never
        happened.
        """
        board = self._board
        board.enter("drain", "devices deliver their last readings")
        stopped_at = time.time()
        board.events.append(Event(stopped_at, "devices stopped"))
        await self.stage.stop_devices()
        self.stage.devices, self.stage.firmware = [], None
        board.say(f"devices stopped: {counted(board.acknowledged, 'reading')} acknowledged")
        board.doing = "waiting until nothing waits anywhere"
        looks = board.looks
        if not await self._reached(lambda: board.looks >= looks + 2 and self._drained(), DRAINED_S_MAX):
            board.say(f"still not drained after {DRAINED_S_MAX:.0f} s", "bad")
            return None
        took = time.time() - stopped_at
        landed = f"{counted(board.landed.rows, 'row')} in the lake in {counted(board.landed.commits, 'commit')}"
        board.say(f"drained: {landed}", "good")
        return took

    async def _prove(self) -> Proved:
        """Have the gateways state their accepted messages, and compare the lake with that. Raises DemoError."""
        stage = self.stage
        self._board.doing = "the gateways state what they accepted, and the lake is held against it"
        for name, gateway in stage.gateways.items():
            place = f"127.0.0.1:{gateway.http}"
            await stage.run_waypost(f"drain-{name}", "bridge", "drain", "--http", place, within_s=PROVED_S_MAX)
        command = ("prove", "--lake", str(stage.lake), "--json")
        child = await stage.run_waypost("prove", *command, within_s=PROVED_S_MAX)
        [found] = json.loads("\n".join(child.output))["items"]
        streams = found["streams"]
        return Proved(
            accepted=sum(one["accepted"] for one in streams),
            landed=sum(one["landed"] for one in streams),
            unstated=sum(one["unstated"] for one in streams),
            statements=found["statements"],
        )

    async def _verify(
        self, trial: Trial, drained_s: float | None, proved: Proved | None
    ) -> tuple[list[Account], list[Fact], list[str]]:
        """Compare the lake with the journals and write `facts.json`."""
        self._board.enter("analyse", "comparing the lake with the devices' journals")
        deliveries = [device.journal.deliveries() for device in self._board.devices]
        rows, ledger = await asyncio.to_thread(self._lake.rows), await asyncio.to_thread(self._lake.ledger)
        accounts = [account(name, deliveries, rows, ledger) for name in GATEWAYS]
        everything = total(accounts)
        facts = verdict.facts_of(accounts, everything, trial, drained_s, proved)
        notes = verdict.notes_of(everything, self._firmware)
        text = json.dumps(verdict.document(facts, notes, self._board.events), indent=2)
        (self._folder / "facts.json").write_text(text + "\n", encoding="utf-8")
        good = verdict.passed(facts)
        counts = f"{everything.landed:,} of {everything.acknowledged:,} acknowledged readings are in the lake"
        self._board.say(counts, "good" if good else "bad")
        return accounts, facts, notes

    async def _analyse(self) -> Path:
        """Run the jobs of analytics and write their report."""
        board, stage = self._board, self.stage
        lake, report = str(stage.lake), self._folder / "report.html"
        board.doing = "the jobs work on the lake"
        started = time.monotonic()
        command = ("lake", "run", "--lake", lake, "--json")
        jobs = await self._telling("analytics", stage.run_waypost("analytics", *command, within_s=ANALYTICS_S_MAX))
        (self._folder / "analytics.json").write_text("\n".join(jobs.output) + "\n", encoding="utf-8")
        board.say(f"jobs done in {time.monotonic() - started:.0f} s", "good")
        board.doing = "drawing the report"
        arguments = ["--lake", lake, "--out", str(report), "--facts", str(self._folder / "facts.json")]
        await stage.run_waypost("report", "report", *arguments, within_s=ANALYTICS_S_MAX)
        if not report.is_file():
            raise DemoError(f"the report is not at {report}")
        return report

    async def _telling(self, name: str, command: Coroutine[Any, Any, Child]) -> Child:
        """Wait for a command, showing its last log line."""
        running, doing = asyncio.create_task(command), self._board.doing
        try:
            while not running.done():
                await asyncio.wait([running], timeout=INTERVAL_S)
                lines = self.stage.last_lines(name)
                self._board.doing = f"{doing}: {' '.join(lines[-1].split())}" if lines else doing
            return running.result()
        finally:
            running.cancel()

    # --- waiting ----------------------------------------------------------------------------------------------

    async def _at(self, second: float) -> None:
        """Wait until this many seconds after the start of the traffic; check that all processes run."""
        while (left := self._flowing_since + second - time.monotonic()) > 0:
            self.stage.check()
            await asyncio.sleep(min(left, INTERVAL_S))

    async def _until(self, condition: Callable[[], bool], within_s: float, otherwise: str) -> None:
        """Wait for a condition of the watcher. Raises DemoError when it does not hold in time."""
        if not await self._reached(condition, within_s):
            raise DemoError(f"{otherwise} within {within_s:.0f} s", self._board_in_words())

    async def _reached(self, condition: Callable[[], bool], within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while not condition():
            self.stage.check()
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(INTERVAL_S / 5)
        return True

    def _acknowledged_by(self, gateway: str) -> int:
        return sum(len(device.journal.sends) for device in self._board.devices if device.gateway == gateway)

    def _uplinks_up(self) -> bool:
        return all(gateway.uplink == "connected" for gateway in self._board.gateways.values())

    def _drained(self) -> bool:
        empty = all(gateway.backlog == 0 for gateway in self._board.gateways.values())
        return empty and self._board.landed.rows >= self._board.acknowledged

    def _board_in_words(self) -> str:
        gateways = [
            f"{g.name}: {g.state}, uplink {g.uplink}, backlog {g.backlog}" for g in self._board.gateways.values()
        ]
        waiting = [d.name for d in self._board.devices if not d.journal.sends]
        return "\n".join(
            [*gateways, *([f"devices without an acknowledgement: {', '.join(waiting)}"] if waiting else [])]
        )


def _has_sensors() -> bool:
    return bool(getattr(psutil, "sensors_temperatures", dict)())


def summary(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome for `--json`."""
    return {
        "verdict": "ok" if outcome.ok else "failed",
        "acknowledged": outcome.everything.acknowledged,
        "in_lake": outcome.everything.landed,
        "duplicates": outcome.everything.duplicates,
        "unexplained_gaps": outcome.everything.unexplained_gaps,
        "resent_by_devices": outcome.everything.resent,
        "report": str(outcome.report),
    }
