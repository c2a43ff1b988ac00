"""Kubernetes with real controllers and a real scheduler, and with nodes and pods that kwok simulates.

No container runs: a pod becomes ready, completes and ends after the times of its stages.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from tests.support.api_server import START_S, ApiServer
from tests.support.custom_metrics import is_ready
from tests.support.kubernetes_programs import STAGES, need
from tests.support.processes import wait_until

ZONES: Final = ("a", "b", "c")
NODES: Final = 6
LEAVES_AFTER_S: Final = 8
"""Time that a pod takes to end: longer than the endpoints need to change on a busy machine."""
WATCH_S: Final = 5
"""Length of one watch; the next one continues where it ended."""
FAST: Final = {
    f"pod-{stage}.stage.kwok.x-k8s.io/{what}": length
    for stage, length in (("create", "200ms"), ("ready", "2s"))
    for what in ("delay", "jitter-delay")
}
"""Annotations of a pod that is ready after two seconds."""
STUCK: Final = {**FAST, **{f"pod-ready.stage.kwok.x-k8s.io/{what}": "24h" for what in ("delay", "jitter-delay")}}
"""Annotations of a pod that never becomes ready."""
BROKEN_TAG: Final = "broken"
"""Tag of an image. Jobs with it fail."""
OWN_STAGES: Final = """
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-leaves}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions: [{key: .metadata.deletionTimestamp, operator: Exists}]
  delay: {durationMilliseconds: LEAVES_AFTER_MS}
  next: {delete: true}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-fails}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
      - {key: .status.phase, operator: In, values: [Running]}
      - {key: '.metadata.ownerReferences.[].kind', operator: In, values: [Job]}
      - {key: '.spec.containers.[].image', operator: In, values: ['waypost-hub:BROKEN_TAG']}
  weight: 1000000000
  delay: {durationMilliseconds: 200}
  next:
    statusTemplate: |
      phase: Failed
      containerStatuses:
      {{ range .spec.containers }}
      - name: {{ .name | Quote }}
        image: {{ .image | Quote }}
        ready: false
        restartCount: 0
        state: {terminated: {exitCode: 1, reason: Error}}
      {{ end }}
"""


class SimulatedCluster:
    """Runs while it is entered."""

    def __init__(self, folder: Path) -> None:
        need("kube-controller-manager", "kube-scheduler", "kwok")
        self.server: Final = ApiServer(folder)

    def __enter__(self) -> Self:
        server = self.server.__enter__()
        try:
            common = (f"--kubeconfig={server.configuration}", "--leader-elect=false", "--secure-port=0")
            patient = "--node-monitor-grace-period=10m"  # a busy machine is no lost node
            server.start("kube-controller-manager", *common, patient, "--horizontal-pod-autoscaler-sync-period=5s")
            server.start("kube-scheduler", *common)
            server.start(
                "kwok", f"--kubeconfig={server.configuration}", f"--config={self._stages()}", "--manage-all-nodes=true",
                "--node-lease-duration-seconds=40",
            )  # fmt: skip
            server.apply(*(node(number) for number in range(NODES)))
            wait_until(self._is_settled, timeout_s=START_S, what="nodes are ready", every_s=0.5)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__()

    def zones(self, pods: Mapping[str, dict[str, Any]]) -> list[str]:
        """Return the zone of each pod."""
        nodes = {each["metadata"]["name"]: each["metadata"]["labels"] for each in self._nodes()}
        return sorted(nodes[pod["spec"]["nodeName"]]["topology.kubernetes.io/zone"] for pod in pods.values())

    def _nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.read("/api/v1/nodes")["items"]
        return found

    def _is_settled(self) -> bool:
        return self.server.is_ready() and all(
            any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions", ()))
            and not node["spec"].get("taints")
            for node in self._nodes()
        )

    def _stages(self) -> Path:
        file = self.server.folder / "stages.yaml"
        own = OWN_STAGES.replace("LEAVES_AFTER_MS", str(LEAVES_AFTER_S * 1000)).replace("BROKEN_TAG", BROKEN_TAG)
        file.write_text("\n---\n".join(path.read_text() for path in sorted(STAGES.glob("*.yaml"))) + own)
        return file


def node(number: int) -> dict[str, Any]:
    """Return a node in one of the zones."""
    name = f"node-{number}"
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": ZONES[number % len(ZONES)]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


class PodHistory(threading.Thread):
    """Every state of the pods with a label that the API server had, while it is entered."""

    def __init__(self, server: ApiServer, namespace: str, label: str) -> None:
        super().__init__(name="pod-history", daemon=True)
        self._path = f"/api/v1/namespaces/{namespace}/pods?labelSelector={label}"
        self._server = server
        self._stopping = threading.Event()
        self._version = ""
        self.pods: Final[dict[str, dict[str, Any]]] = {}
        """Pods by name, those that leave too."""
        self.ready_min = 0
        """Fewest ready pods at any time since `begin`."""
        self.pods_max = 0
        """Most pods that were not leaving at any time since then."""
        self.seen: Final[set[str]] = set()
        """Names of all pods since then."""

    def __enter__(self) -> Self:
        found = self._server.read(self._path)
        self._version = found["metadata"]["resourceVersion"]
        self.pods.update({pod["metadata"]["name"]: pod for pod in found["items"]})
        self.begin()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join(60)

    def begin(self) -> None:
        """Forget what was."""
        self.ready_min, self.pods_max = len(self.ready()), len(self.staying())
        self.seen.clear()
        self.seen.update(self.pods)

    def ready(self) -> dict[str, dict[str, Any]]:
        """Return the pods that serve."""
        return {name: pod for name, pod in dict(self.pods).items() if is_ready(pod)}

    def staying(self) -> dict[str, dict[str, Any]]:
        """Return the pods that are not leaving."""
        return {name: pod for name, pod in dict(self.pods).items() if "deletionTimestamp" not in pod["metadata"]}

    def run(self) -> None:
        while not self._stopping.is_set():
            path = f"{self._path}&watch=1&timeoutSeconds={WATCH_S}&resourceVersion={self._version}"
            with self._server.open(path, timeout_s=4 * WATCH_S) as lines:
                for line in lines:
                    event = json.loads(line)
                    self._version = event["object"]["metadata"]["resourceVersion"]
                    self._note(event["type"], event["object"])

    def _note(self, kind: str, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        if kind == "DELETED":
            self.pods.pop(name, None)
        else:
            self.pods[name] = pod
            self.seen.add(name)
        self.ready_min = min(self.ready_min, len(self.ready()))
        self.pods_max = max(self.pods_max, len(self.staying()))
