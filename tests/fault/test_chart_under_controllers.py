"""The chart under the real controllers of Kubernetes: roll-outs, drained nodes, failed updates, the autoscaler.

Nodes and pods are simulated (`tests.support.simulated_cluster`), so no hub runs: `test_rolling_hubs.py` does that.
Needs the programs of `tests.support.kubernetes_programs`:
``./waypost test tests/fault/test_chart_under_controllers.py -m slow -s``
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
import yaml

from tests.support.api_server import ApiServer
from tests.support.custom_metrics import CustomMetrics
from tests.support.helm import CHART, SMALLEST
from tests.support.processes import wait_until
from tests.support.simulated_cluster import BROKEN_TAG, FAST, STUCK, ZONES, PodHistory, SimulatedCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

NAMESPACE: Final = "waypost"
HUBS: Final = "app.kubernetes.io/component=hub"
REPLICAS: Final = 3
ROLLED_S: Final = 300.0
"""Longest roll-out on a busy machine; it takes about 30 s."""
ENDPOINT_S, DRAIN_S = 3, 10
VALUES: Final[dict[str, Any]] = {
    **SMALLEST,
    "podAnnotations": FAST,
    "drain": {"endpointSeconds": ENDPOINT_S, "seconds": DRAIN_S},
    "resources": {"requests": {"cpu": "50m", "memory": "200Mi"}, "limits": {"memory": "1Gi"}},
}


class ChartRelease:
    """Release `fleet`, installed, changed and taken back by Helm."""

    def __init__(self, server: ApiServer) -> None:
        self.server: Final = server

    def run(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run Helm with the values and `more`; return the outcome."""
        file = self.server.folder / "values.yaml"
        file.write_text(yaml.safe_dump({**VALUES, **more}))
        return self.server.helm(*words, "fleet", str(CHART), f"--namespace={NAMESPACE}", f"--values={file}")

    def change(self, word: str, **more: Any) -> None:
        """Install or upgrade; AssertionError if that fails."""
        done = self.run(word, "--timeout=4m", **more)
        assert done.returncode == 0, done.stdout + done.stderr

    def roll_back(self) -> None:
        """Go back to the first release."""
        done = self.server.helm("rollback", "fleet", "1", f"--namespace={NAMESPACE}")
        assert done.returncode == 0, done.stderr

    def deployment(self) -> dict[str, Any]:
        """Return the Deployment of the hubs."""
        return self.server.read(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/fleet")

    def template(self) -> str:
        """Return the template of the hubs' pods."""
        return json.dumps(self.deployment()["spec"]["template"], sort_keys=True)

    def is_rolled(self) -> bool:
        """Return whether all hubs are the newest and ready, and no older one is left."""
        found = self.deployment()
        wanted, status = found["spec"]["replicas"], found["status"]
        counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")]
        return status.get("observedGeneration") == found["metadata"]["generation"] and counts == [wanted] * 3

    def wait(self) -> None:
        """Wait until the roll-out is complete."""
        wait_until(self.is_rolled, timeout_s=ROLLED_S, what="all hubs are the newest and ready", every_s=0.5)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedCluster]:
    with SimulatedCluster(tmp_path_factory.mktemp("cluster")) as running:
        running.server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield running


@pytest.fixture
def release(cluster: SimulatedCluster) -> Iterator[ChartRelease]:
    """Return an installed release with all hubs ready; it is removed afterwards."""
    made = ChartRelease(cluster.server)
    made.change("install")
    try:
        made.wait()
        yield made
    finally:
        remove(cluster.server)


def remove(server: ApiServer) -> None:
    """Uninstall the release, and wait until its pods are gone."""
    server.helm("uninstall", "fleet", f"--namespace={NAMESPACE}", "--wait")
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    server.kubectl("delete", "jobs", "--all", f"--namespace={NAMESPACE}")
    wait_until(lambda: not server.read(pods)["items"], timeout_s=ROLLED_S, what="all pods are gone", every_s=0.5)


@pytest.fixture
def history(release: ChartRelease) -> Iterator[PodHistory]:
    with PodHistory(release.server, NAMESPACE, HUBS) as kept:
        yield kept


class TestRollOut:
    def test_replicas_serve_at_all_times_and_in_all_zones(
        self, cluster: SimulatedCluster, release: ChartRelease, history: PodHistory
    ) -> None:
        assert cluster.zones(history.ready()) == list(ZONES)
        before = set(history.ready())
        release.change("upgrade", image={"tag": "next"})
        release.wait()
        assert history.ready_min == REPLICAS
        assert history.pods_max == REPLICAS + 1
        assert not before & set(history.ready())
        assert cluster.zones(history.ready()) == list(ZONES), "the pods of the version before do not count"
        print(f"{len(history.seen)} pods, {history.ready_min} to {history.pods_max} at a time")

    def test_version_that_never_is_ready_replaces_no_hub(self, release: ChartRelease, history: PodHistory) -> None:
        before = set(history.ready())
        release.change("upgrade", podAnnotations=STUCK)
        wait_until(lambda: len(history.staying()) == REPLICAS + 1, timeout_s=ROLLED_S, what="the surge")
        release.change("upgrade", podAnnotations=STUCK, podLabels={"second": "try"})  # nor does the next attempt
        wait_until(
            lambda: len(history.seen) >= REPLICAS + 2, timeout_s=ROLLED_S, what="the surge of the second attempt"
        )
        assert set(history.ready()) == before
        release.roll_back()
        release.wait()
        assert history.ready_min == REPLICAS

    def test_rollback_brings_back_what_was(self, release: ChartRelease, history: PodHistory) -> None:
        first = release.template()
        release.change("upgrade", image={"tag": "next"}, drain={"endpointSeconds": 5, "seconds": 20})
        release.wait()
        assert release.template() != first
        release.roll_back()
        release.wait()
        assert release.template() == first
        assert history.ready_min == REPLICAS

    def test_failed_migration_replaces_no_hub(self, release: ChartRelease, history: PodHistory) -> None:
        before, template = set(history.pods), release.template()
        done = release.run("upgrade", "--timeout=4m", image={"tag": BROKEN_TAG})
        assert done.returncode != 0
        assert "pre-upgrade hooks failed" in done.stderr
        assert (release.template(), history.seen) == (template, before)
        release.change("upgrade", image={"tag": "corrected"})
        release.wait()
        assert history.ready_min == REPLICAS


class TestLeaving:
    def test_pod_leaves_the_endpoints_before_it_ends(self, release: ChartRelease, history: PodHistory) -> None:
        name = min(history.ready())
        deleted = release.server.kubectl("delete", "pod", name, f"--namespace={NAMESPACE}", "--wait=false")
        assert deleted.returncode == 0
        wait_until(
            lambda: not self.is_served(release.server, name), timeout_s=ROLLED_S, what="it has left the endpoints"
        )
        pod = history.pods[name]
        assert "deletionTimestamp" in pod["metadata"]
        assert pod["metadata"]["deletionGracePeriodSeconds"] == ENDPOINT_S + DRAIN_S + 30
        release.wait()

    @staticmethod
    def is_served(server: ApiServer, pod: str) -> bool:
        """Return whether the Service for gateways has new connections for a pod."""
        label = "kubernetes.io/service-name=fleet"
        slices = server.read(f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices?labelSelector={label}")
        endpoints = [each for one in slices["items"] for each in one["endpoints"]]
        return any(each["targetRef"]["name"] == pod and each["conditions"]["ready"] for each in endpoints)

    def test_drained_nodes_take_one_hub_at_a_time(self, release: ChartRelease, history: PodHistory) -> None:
        nodes = {pod["spec"]["nodeName"] for pod in history.ready().values()}
        assert len(nodes) == REPLICAS
        try:
            with ThreadPoolExecutor() as threads:
                drained = list(threads.map(lambda name: self.drain(release.server, name), nodes))
        finally:
            release.server.kubectl("uncordon", *nodes)
        assert [done.returncode for done in drained] == [0] * REPLICAS, drained
        release.wait()
        assert history.ready_min == REPLICAS - 1
        assert any("violate the pod's disruption budget" in done.stderr for done in drained), "one had to wait"

    @staticmethod
    def drain(server: ApiServer, name: str) -> subprocess.CompletedProcess[str]:
        return server.kubectl("drain", name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=200s")


class TestAutoscaler:
    AUTOSCALING: Final = {"enabled": True, "minReplicas": REPLICAS, "maxReplicas": 6}

    @pytest.fixture
    def metrics(self, cluster: SimulatedCluster) -> Iterator[CustomMetrics]:
        with CustomMetrics(cluster.server) as serving:
            serving.each["waypost_hub_landing_oldest_seconds"] = 0.5
            serving.totals["waypost_hub_connections"] = 12_000
            yield serving

    @staticmethod
    def autoscaler(server: ApiServer) -> dict[str, Any]:
        found = server.read(f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers/fleet")
        status: dict[str, Any] = found["status"]
        return status

    def condition(self, server: ApiServer, kind: str) -> tuple[str, str]:
        """Return status and reason of a condition."""
        conditions = self.autoscaler(server).get("conditions", ())
        [found] = [each for each in conditions if each["type"] == kind] or [{"status": "", "reason": ""}]
        return found["status"], found["reason"]

    def test_hubs_follow_their_connections_and_their_oldest_delivery(
        self, release: ChartRelease, history: PodHistory, metrics: CustomMetrics
    ) -> None:
        server = release.server
        release.change("upgrade", autoscaling=self.AUTOSCALING)
        wait_until(
            lambda: self.condition(server, "ScalingActive") == ("True", "ValidMetricFound"), timeout_s=ROLLED_S,
            what="the autoscaler has both metrics", every_s=1,
        )  # fmt: skip
        release.wait()
        assert history.ready_min == REPLICAS, "turning it on ends no hub"
        assert len(history.staying()) == REPLICAS
        metrics.totals["waypost_hub_connections"] = 36_000  # 8 000 for each of 4.5
        began = time.monotonic()
        wait_until(lambda: len(history.ready()) == 5, timeout_s=2 * ROLLED_S, what="five hubs", every_s=1)
        print(f"five hubs after {time.monotonic() - began:.0f} s")
        metrics.each["waypost_hub_landing_oldest_seconds"] = 30
        wait_until(lambda: len(history.ready()) == 6, timeout_s=2 * ROLLED_S, what="as many as there may be", every_s=1)
        release.change("upgrade", autoscaling=self.AUTOSCALING, image={"tag": "next"})
        release.wait()
        assert history.ready_min == REPLICAS
        assert (len(history.ready()), history.pods_max) == (6, 7), "an update keeps the number"
        metrics.each["waypost_hub_landing_oldest_seconds"] = 0
        metrics.totals["waypost_hub_connections"] = 100
        wait_until(
            lambda: self.condition(server, "AbleToScale") == ("True", "ScaleDownStabilized"), timeout_s=ROLLED_S,
            what="the autoscaler waits before it takes hubs away", every_s=1,
        )  # fmt: skip
        assert len(history.staying()) == 6

    def test_number_is_the_autoscalers_alone_when_it_is_installed_with_the_hubs(
        self, cluster: SimulatedCluster
    ) -> None:
        """A rollback does not bring back the number of an earlier time."""
        release = ChartRelease(cluster.server)
        release.change("install", autoscaling=self.AUTOSCALING)
        try:
            wait_until(
                lambda: release.deployment()["spec"]["replicas"] == REPLICAS and release.is_rolled(),
                timeout_s=ROLLED_S, what="the least number of hubs", every_s=0.5,
            )  # fmt: skip
            release.change("upgrade", autoscaling=self.AUTOSCALING, image={"tag": "next"})
            scaled = cluster.server.kubectl("scale", "deployment/fleet", "--replicas=4", f"--namespace={NAMESPACE}")
            assert scaled.returncode == 0
            release.roll_back()
            assert release.deployment()["spec"]["replicas"] == 4
        finally:
            remove(cluster.server)

    def test_hubs_stay_when_the_adapter_is_away(self, release: ChartRelease, history: PodHistory) -> None:
        release.change("upgrade", autoscaling=self.AUTOSCALING)
        wait_until(
            lambda: self.condition(release.server, "ScalingActive")[0] == "False", timeout_s=ROLLED_S,
            what="the autoscaler has no metric", every_s=1,
        )  # fmt: skip
        assert (history.ready_min, len(history.staying())) == (REPLICAS, REPLICAS)
