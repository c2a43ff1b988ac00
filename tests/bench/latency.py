"""PUBACK time at a steady rate, in units of commits.

A message that arrives during a commit waits for its end and for the next one. A broker that syncs before it answers
therefore needs two commits and the network. Commit times differ a hundredfold between media, and from minute to minute,
so the gateway's own histogram is read before and after every round.
"""

from __future__ import annotations

import statistics
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.brokers import MosquittoPersistent, WaypostBroker
from tests.bench.comparison import Benchmark, Settings
from tests.bench.load import LoadGenerators
from tests.bench.packages import say
from tests.bench.result import Result, at_most
from tests.bench.sessions import absent_session
from tests.support.http_client import ask

COMMITS: Final = 3.0
"""Most commits for a PUBACK: the running one, its own, and one for everything else."""
PACED: Final = ("-c", "50", "-n", "100000", "-q", "1", "-s", "100", "-r", "20000")
_METRIC: Final = "waypost_store_commit_seconds"


class CommitTimes(NamedTuple):
    """Scrape of the gateway's histogram: upper end of each bucket in seconds → commits so far, cumulative."""

    buckets: dict[float, float]

    @classmethod
    def scrape(cls, gateway: WaypostBroker) -> CommitTimes:
        families = list(text_string_to_metric_families(ask(gateway, "GET", "/metrics").body.decode()))
        samples = (sample for family in families if family.name == _METRIC for sample in family.samples)
        return cls({float(each.labels["le"]): each.value for each in samples if each.name.endswith("_bucket")})

    def percentile_us(self, q: float, *, since: CommitTimes) -> float:
        """Return the time below which the share `q` of the commits since then stayed; linear within a bucket."""
        counts = [(end, count - since.buckets[end]) for end, count in sorted(self.buckets.items())]
        wanted = counts[-1][1] * q
        low, before = 0.0, 0.0
        for end, count in counts:
            if count >= wanted and count > before:
                high = low if end == float("inf") else end
                return 1e6 * (low + (high - low) * (wanted - before) / (count - before))
            low, before = end, count
        return 0.0


def run(load: LoadGenerators, settings: Settings) -> list[Result]:
    ours: dict[str, list[float]] = {key: [] for key in ("p50", "p99", "commit_p50", "commit_p99")}
    theirs: dict[str, list[float]] = {"p50": [], "p99": []}
    with MosquittoPersistent() as mosquitto, WaypostBroker() as waypost:
        for broker in (waypost, mosquitto):
            absent_session(broker)
            load.run("mqttload", broker.port("mqtt"), *PACED)
        for number in range(settings.rounds):
            before = CommitTimes.scrape(waypost)
            acks = load.run("mqttload", waypost.port("mqtt"), *PACED)
            after = CommitTimes.scrape(waypost)
            for name, q in (("p50", 0.5), ("p99", 0.99)):
                ours[name].append(acks[f"ack_us_{name}"])
                ours[f"commit_{name}"].append(after.percentile_us(q, since=before))
            acks = load.run("mqttload", mosquitto.port("mqtt"), *PACED)
            for name, found in theirs.items():
                found.append(acks[f"ack_us_{name}"])
            say(
                f"  mqtt-latency {number + 1}/{settings.rounds}: waypost PUBACK p50 {ours['p50'][-1]:,.0f}, "
                f"p99 {ours['p99'][-1]:,.0f} us; "
                f"its commits {ours['commit_p50'][-1]:,.0f}, {ours['commit_p99'][-1]:,.0f} us; "
                f"{mosquitto.name} {theirs['p50'][-1]:,.0f}, {theirs['p99'][-1]:,.0f} us"
            )
        return _results(ours, theirs, mosquitto.name, waypost.resident_mib, mosquitto.resident_mib)


def _results(
    ours: dict[str, list[float]], theirs: dict[str, list[float]], peer: str, ours_mib: float, theirs_mib: float
) -> list[Result]:
    details = {**{f"waypost_{key}_us": found for key, found in ours.items()},
               **{f"{peer}_{key}_us": found for key, found in theirs.items()}}  # fmt: skip
    in_commits = {
        q: statistics.median(a / c for a, c in zip(ours[q], ours[f"commit_{q}"], strict=True)) for q in ("p50", "p99")
    }
    ratio = statistics.median(a / b for a, b in zip(ours["p99"], theirs["p99"], strict=True))
    latency = Result(
        "mqtt-latency", BENCHMARK.about, "us, p99", statistics.median(ours["p99"]), None, peer,
        statistics.median(theirs["p99"]), ratio, ours_mib, theirs_mib, details,
    )  # fmt: skip
    worst = Result(
        "mqtt-latency-p99", "p99 of PUBACK in commits: p99 of the commits of the same round", "commits",
        in_commits["p99"], at_most(COMMITS, in_commits["p99"]),
    )  # fmt: skip
    usual = Result(
        "mqtt-latency-p50", "p50 of PUBACK in commits: p50 of the commits of the same round", "commits",
        in_commits["p50"], at_most(COMMITS, in_commits["p50"]),
    )  # fmt: skip
    return [latency, worst, usual]


BENCHMARK = Benchmark(
    "mqtt-latency", "MQTT QoS 1 at 20 000 msg/s, PUBACK; theirs with its persistence, unsynced", 70, run
)
