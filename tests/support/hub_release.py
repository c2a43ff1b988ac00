"""Release of the hub's chart on the cluster that `KUBECONFIG` names, in a namespace of the test."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Self

import yaml

from cloud.hub.enrolment.authority import OwnAuthority, key_pem, new_key
from tests.support.helm import CHART
from tests.support.kubernetes_cluster import DELETED_S, kubectl, local_address
from tests.support.postgres import PASSWORD, Postgres
from tests.support.s3 import BUCKET, KEYS, ObjectStore

DAY_S: Final = 86_400.0
JOB_S: Final = 300
"""Longest job on a busy machine."""
ROLLED_S: Final = 600
"""Longest roll-out of all hubs on a busy machine."""


def missing() -> str | None:
    """Return why the tests cannot run hubs on a cluster; None if they can."""
    if not os.environ.get("KUBECONFIG"):
        return "KUBECONFIG names no Kubernetes cluster"
    if not os.environ.get("WAYPOST_HUB_IMAGE"):
        return "WAYPOST_HUB_IMAGE names no image that `waypost image container hub` made and the cluster can start"
    for program in ("helm", "kubectl"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    try:
        kubectl("get", "--raw", "/readyz")
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return f"the cluster of KUBECONFIG does not answer: {error.stderr or error}"
    return None


class HubRelease:
    """A context manager. At its end the namespace is deleted with everything in it."""

    def __init__(self, folder: Path, postgres: Postgres, store: ObjectStore, *, replicas: int) -> None:
        """`postgres` and `store` have to be reachable for pods."""
        self._folder = folder
        self._registry = f"postgresql://careful@{local_address()}:{postgres.port}/postgres"
        self._endpoint = f"http://{local_address()}:{store.port}"
        self._replicas = replicas
        self._namespace = f"waypost-test-{secrets.token_hex(4)}"
        self._authority = OwnAuthority.make("fleet of a test", time.time())
        self.store: Final = store

    @property
    def lake(self) -> str:
        """Place of the lake."""
        return f"s3://{BUCKET}/{self._namespace}"

    def __enter__(self) -> Self:
        kubectl("create", "namespace", self._namespace)
        kubectl("label", "namespace", self._namespace, "pod-security.kubernetes.io/enforce=restricted")
        try:
            self._create_secrets()
            self._helm("install")
            self.wait()
        except BaseException:
            print(self.describe())
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        kubectl("delete", "namespace", self._namespace, f"--timeout={DELETED_S}s", timeout_s=2 * DELETED_S)

    def roll(self, number: int) -> None:
        """Replace every hub, by another annotation of the pods; return when the new ones serve."""
        self._helm("upgrade", f"--set-string=podAnnotations.roll={number}")
        self.wait()

    def wait(self) -> None:
        """Wait until all hubs are the newest and ready."""
        words = ("rollout", "status", "deployment/fleet", f"--timeout={ROLLED_S}s")
        self._within(*words, timeout_s=ROLLED_S + 30)

    def pods(self) -> set[str]:
        """Return the names of the hubs' pods, without those that are leaving."""
        found = json.loads(self._within("get", "pods", "--selector=app.kubernetes.io/component=hub", "--output=json"))
        return {pod["metadata"]["name"] for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]}

    def kill(self, pod: str) -> None:
        """Delete a pod without a grace period: its processes are killed."""
        self._within("delete", "pod", pod, "--grace-period=0", "--force")

    def address(self) -> tuple[str, int]:
        """Return host and port of the Service for gateways, within the cluster."""
        service = json.loads(self._within("get", "service", "fleet", "--output=json"))["spec"]
        return service["clusterIP"], service["ports"][0]["port"]

    def run(self, *command: str) -> str:
        """Run a command in a hub's pod; return its output."""
        return self._within("exec", "deploy/fleet", "--", *command, timeout_s=120)

    def run_job(self, name: str) -> str:
        """Run a job of a CronJob now; return its log."""
        self._within("create", "job", f"--from=cronjob/{name}", "now")
        self._within("wait", "--for=condition=complete", "job/now", f"--timeout={JOB_S}s", timeout_s=JOB_S + 30)
        return self._within("logs", "job/now")

    def tls(self, gateway: str) -> ssl.SSLContext:
        """Return the context of a gateway with a certificate of the authority."""
        key, now = new_key(), time.time()
        made = self._authority.gateway_certificate(key.public_key(), "default", gateway, now, DAY_S)
        file = self._folder / f"{gateway}.pem"
        file.write_text(key_pem(key) + made.pem)
        context = ssl.create_default_context(cadata=self._authority.pem)
        context.load_cert_chain(file)
        return context

    def describe(self) -> str:
        """Return pods, events and logs, for the message of a failed test."""
        logs = self._within("logs", "--selector=app.kubernetes.io/component=hub", "--tail=30", "--prefix")
        return self._within("get", "pods,events", "--output", "wide") + logs

    def _create_secrets(self) -> None:
        for name, text in (("tls.crt", self._authority.pem), ("tls.key", self._authority.key_pem)):
            (self._folder / name).write_text(text)
        files = (f"--cert={self._folder / 'tls.crt'}", f"--key={self._folder / 'tls.key'}")
        self._within("create", "secret", "tls", "waypost-authority", *files)
        self._within("create", "configmap", "waypost-ca", f"--from-file=ca.crt={self._folder / 'tls.crt'}")
        (self._folder / "password").write_text(PASSWORD)
        self._within("create", "secret", "generic", "waypost-registry", f"--from-file={self._folder / 'password'}")
        keys = [f"--from-literal={name}={value}" for name, value in KEYS.items() if name != "AWS_REGION"]
        self._within("create", "secret", "generic", "waypost-lake", *keys)

    def _helm(self, action: str, *options: str) -> None:
        repository, _, tag = os.environ["WAYPOST_HUB_IMAGE"].rpartition(":")
        values: dict[str, Any] = {
            "replicas": self._replicas,
            "names": ["hub.test"],
            "image": {"repository": repository, "tag": tag},
            "lake": {
                "place": self.lake,
                "region": KEYS["AWS_REGION"],
                "endpoint": self._endpoint,
                "existingSecret": "waypost-lake",
            },
            "registry": {"url": self._registry, "existingSecret": "waypost-registry"},
            "authority": {"existingSecret": "waypost-authority", "caConfigMap": "waypost-ca"},
            "service": {"type": "ClusterIP"},
            "resources": {"requests": {"cpu": "50m", "memory": "200Mi"}, "limits": {"memory": "1Gi"}},
            "drain": {"endpointSeconds": 3, "seconds": 10},
            "networkPolicy": {"enabled": False},
        }
        file = self._folder / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        command = ["helm", action, "fleet", str(CHART), "--namespace", self._namespace, "--values", str(file), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def _within(self, *arguments: str, timeout_s: float = 30.0) -> str:
        return kubectl("--namespace", self._namespace, *arguments, timeout_s=timeout_s)
