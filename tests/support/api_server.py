"""API server of Kubernetes for tests: etcd and kube-apiserver as processes on loopback, without nodes."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import yaml

from tests.support.certificates import Authority
from tests.support.kubernetes_programs import DEFINITIONS, need, program
from tests.support.medium import fast_folder
from tests.support.processes import free_port, wait_until

START_S: Final = 180.0
"""Longest start on a machine that is busy with other tests."""
COMMAND_S: Final = 120.0
STOP_S: Final = 30.0
TOKEN: Final = "test"


class ApiServer:
    """Serves while it is entered. Its user may do everything."""

    def __init__(self, folder: Path, *options: str) -> None:
        """`options` of kube-apiserver."""
        need("etcd", "kube-apiserver", "kubectl", "helm")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder: Final = folder
        self.authority: Final = Authority(folder / "authority")
        self.configuration: Final = folder / "kubeconfig"
        """Configuration (`KUBECONFIG`) of the user."""
        self._port = free_port()
        self._options = options
        self._data = tempfile.mkdtemp(prefix="waypost-etcd-", dir=fast_folder())
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """Return the address of the API."""
        return f"https://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._write_configuration()
        clients, peers = free_port(), free_port()
        try:
            self.start(
                "etcd", f"--data-dir={self._data}", "--log-level=error",
                f"--listen-client-urls=http://127.0.0.1:{clients}", f"--advertise-client-urls=http://127.0.0.1:{clients}",
                f"--listen-peer-urls=http://127.0.0.1:{peers}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peers}",
                f"--initial-cluster=default=http://127.0.0.1:{peers}",
            )  # fmt: skip
            self.start("kube-apiserver", f"--etcd-servers=http://127.0.0.1:{clients}", *self._arguments())
            wait_until(self.is_ready, timeout_s=START_S, what="kube-apiserver is ready", every_s=0.5)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        shutil.rmtree(self._data, ignore_errors=True)

    def start(self, name: str, *arguments: str) -> None:
        """Start a program, which is stopped together with the server. Its output is in `NAME.log`."""
        place = program(name)
        assert place is not None
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes.append(subprocess.Popen([place, *arguments], stdout=log, stderr=log))

    def is_ready(self) -> bool:
        """Return whether the server answers; AssertionError if a process has ended."""
        ended = [process.args for process in self._processes if process.poll() is not None]
        assert not ended, f"ended, see its log in {self.folder}: {ended}"
        try:
            self.get("/readyz")
        except OSError:
            return False
        return True

    def get(self, path: str) -> bytes:
        """Return the answer of a path of the API; OSError without one."""
        with self.open(path) as answer:
            content: bytes = answer.read()
        return content

    def open(self, path: str, timeout_s: float = 30.0) -> Any:
        """Open a path of the API, for instance one with `watch=1`."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {TOKEN}"})
        return urllib.request.urlopen(request, timeout=timeout_s, context=self._context())

    def read(self, path: str) -> dict[str, Any]:
        """Return a resource or a list of resources."""
        found: dict[str, Any] = json.loads(self.get(path))
        return found

    def kubectl(self, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl with `given` as its input."""
        return self._run("kubectl", arguments, given)

    def helm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Helm."""
        return self._run("helm", arguments, None)

    def apply(self, *resources: Mapping[str, Any], namespace: str = "default") -> None:
        """Create or change resources; AssertionError if one is refused."""
        done = self.kubectl(
            "apply", "--server-side", "--force-conflicts", f"--namespace={namespace}", "--filename=-",
            given=yaml.safe_dump_all(resources),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def define(self) -> set[str]:
        """Create the definitions of the operators; return the kinds of their resources."""
        kinds = set()
        for file in sorted(DEFINITIONS.glob("*.y*ml")):
            for each in yaml.safe_load_all(file.read_text()):
                if each is not None and each["kind"] == "CustomResourceDefinition":
                    kinds.add(each["spec"]["names"]["kind"])
        done = self.kubectl("apply", "--server-side", f"--filename={DEFINITIONS}")
        assert done.returncode == 0, done.stderr
        waited = self.kubectl("wait", "crd", "--all", "--for=condition=Established", f"--timeout={COMMAND_S:g}s")
        assert waited.returncode == 0, waited.stderr
        return kinds

    def _run(self, name: str, arguments: Sequence[str], given: str | None) -> subprocess.CompletedProcess[str]:
        place = program(name)
        assert place is not None
        environment = {**os.environ, "KUBECONFIG": str(self.configuration), "HOME": str(self.folder)}
        return subprocess.run(
            [place, *arguments], input=given, capture_output=True, text=True, timeout=2 * COMMAND_S, check=False,
            env=environment,
        )  # fmt: skip

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authority.certificate)

    def _arguments(self) -> list[str]:
        (self.folder / "tokens.csv").write_text(f'{TOKEN},tester,1,"system:masters"\n')
        serving = self.authority.issue("api-server")
        return [
            f"--secure-port={self._port}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16",
            f"--tls-cert-file={serving.certificate}", f"--tls-private-key-file={serving.key}",
            f"--token-auth-file={self.folder / 'tokens.csv'}", "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={serving.certificate}",
            f"--service-account-signing-key-file={serving.key}",
            *self._options,
        ]  # fmt: skip

    def _write_configuration(self) -> None:
        cluster = {"server": self.url, "certificate-authority": self.authority.certificate}
        view = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        self.configuration.write_text(yaml.safe_dump(view))
        self.configuration.chmod(0o600)
