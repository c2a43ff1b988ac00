"""Kubernetes cluster that `KUBECONFIG` names, with a namespace of the test and a user who may only run executors."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import yaml

ROLE: Final = Path(__file__).parents[2] / "images" / "container" / "analytics" / "driver-role.yaml"
"""Rights of a driver in the product."""
ANSWER_S: Final = 30
"""Longest answer of an API server."""
DELETED_S: Final = 120
"""Longest deletion of a namespace with its pods."""


def missing() -> str | None:
    """Return why the tests have no cluster; None if they have one."""
    if not os.environ.get("KUBECONFIG"):
        return "KUBECONFIG names no Kubernetes cluster"
    if not os.environ.get("WAYPOST_IMAGE"):
        return "WAYPOST_IMAGE names no image that `waypost image container analytics` made and the cluster can start"
    try:
        kubectl("get", "--raw", "/readyz")
    except FileNotFoundError:
        return "kubectl is not installed"
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return f"the cluster of KUBECONFIG does not answer: {error.stderr or error}"
    return None


class KubernetesCluster:
    """A context manager. At its end the namespace is deleted with everything in it."""

    def __init__(self, folder: Path) -> None:
        self.image: Final = os.environ["WAYPOST_IMAGE"]
        self.namespace: Final = f"waypost-test-{secrets.token_hex(4)}"
        self.secret: Final = folder / "secret"
        """File with the secret of driver and executors."""
        self.configuration: Final = folder / "kubeconfig"
        """Configuration (`KUBECONFIG`) of a service account with the driver's role."""
        folder.mkdir()

    @property
    def master(self) -> str:
        """Return Spark's URL of the cluster."""
        return f"k8s://{_server_of(_view())}"

    @property
    def address(self) -> str:
        """Return the address of this machine that the cluster reaches."""
        return local_address()

    def __enter__(self) -> Self:
        kubectl("create", "namespace", self.namespace)
        self.secret.write_text(secrets.token_hex(32))
        self.secret.chmod(0o600)
        self._within("create", "secret", "generic", "waypost-spark", f"--from-file=secret={self.secret}")
        self._within("apply", "--filename", str(ROLE))
        view = _view()
        view["users"] = [
            {"name": user["name"], "user": {"token": self._within("create", "token", "waypost-driver").strip()}}
            for user in view["users"]
        ]
        self.configuration.write_text(yaml.safe_dump(view))
        self.configuration.chmod(0o600)
        return self

    def __exit__(self, *_: object) -> None:
        kubectl("delete", "namespace", self.namespace, f"--timeout={DELETED_S}s", timeout_s=2 * DELETED_S)

    def executors(self) -> dict[str, str]:
        """Return the phases of executors by the names of their pods."""
        pods = json.loads(self._within("get", "pods", "--selector", "spark-role=executor", "--output", "json"))
        return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in pods["items"]}

    def kill(self, pod: str) -> None:
        """Delete a pod without a grace period: its processes are killed."""
        self._within("delete", "pod", pod, "--grace-period=0", "--force")

    def describe(self) -> str:
        """Return the state and the events of all pods, for the message of a failed test."""
        return self._within("get", "pods,events", "--output", "wide")

    def _within(self, *arguments: str) -> str:
        return kubectl("--namespace", self.namespace, *arguments)


def _view() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kubectl("config", "view", "--minify", "--raw", "--output", "json"))
    return found


def _server_of(view: dict[str, Any]) -> str:
    return str(view["clusters"][0]["cluster"]["server"])


def local_address() -> str:
    """Return the address of this machine that the cluster reaches: the one with a route to the API server."""
    server = urlsplit(_server_of(_view()))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect((server.hostname, server.port or 443))
        return str(route.getsockname()[0])


def kubectl(*arguments: str, timeout_s: float = ANSWER_S) -> str:
    """Run kubectl; return its output."""
    command = ["kubectl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True).stdout
