"""Programs of Kubernetes that tests run, and the definitions of the operators' resources.

`python -m tests.support.kubernetes_programs` builds the pinned ones (`tests/support/go/kubernetes`) into the
environment, with `go` 1.26.7 or newer. `WAYPOST_KUBERNETES` names another place. Names of programs build only those.
Strimzi's definitions need Maven and Java, too.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

PINNED: Final = Path(__file__).parent / "go" / "kubernetes"
"""Folder with the versions of all modules, which have hashes."""
FOLDER: Final = Path(os.environ.get("WAYPOST_KUBERNETES", Path(sys.prefix) / "share" / "waypost" / "kubernetes"))
"""Place of the programs, and of the folders `definitions` and `stages`."""
DEFINITIONS: Final = FOLDER / "definitions"
"""CustomResourceDefinitions. Tests use every file in it."""
STAGES: Final = FOLDER / "stages"
"""Stages of kwok: what becomes of nodes and pods."""
PACKAGES: Final = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "helm": "helm.sh/helm/v3/cmd/helm",
    **{name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kubectl", "kube-apiserver")},
    **{name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kube-controller-manager", "kube-scheduler")},
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
}
"""Packages of Go by the names of their programs."""
DEFINED: Final = {
    "github.com/cloudnative-pg/cloudnative-pg@v1.30.0": ("config/crd/bases/postgresql.cnpg.io_clusters.yaml",),
    "github.com/kubeflow/spark-operator/v2@v2.5.0": (
        "config/crd/bases/sparkoperator.k8s.io_scheduledsparkapplications.yaml",
    ),
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
    "github.com/rabbitmq/cluster-operator/v2@v2.20.0": ("config/crd/bases/rabbitmq.com_rabbitmqclusters.yaml",),
    "github.com/rabbitmq/messaging-topology-operator@v1.17.4": (
        "config/crd/bases/rabbitmq.com_permissions.yaml",
        "config/crd/bases/rabbitmq.com_policies.yaml",
        "config/crd/bases/rabbitmq.com_queues.yaml",
        "config/crd/bases/rabbitmq.com_users.yaml",
    ),
    "sigs.k8s.io/gateway-api@v1.6.3": (
        "config/crd/experimental/gateway.networking.k8s.io_backendtlspolicies.yaml",
        "config/crd/experimental/gateway.networking.k8s.io_httproutes.yaml",
    ),
}
"""Modules with definitions, and the files. The chart's resources need no others, but for Strimzi and Keycloak."""
STRIMZI: Final = ("0.49.1", "0.45.0")
"""Versions of Strimzi's classes and of its generator of definitions, both at Maven Central."""
STRIMZI_KINDS: Final = {"kafkatopics": "topic.KafkaTopic", "kafkausers": "user.KafkaUser"}
STAGED: Final = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    *(f"pod/general/pod-{each}.yaml" for each in ("create", "ready", "complete")),
)
"""Files of kwok's module."""
POM: Final = """<project><modelVersion>4.0.0</modelVersion>
<groupId>waypost</groupId><artifactId>definitions</artifactId><version>1</version><dependencies>
<dependency><groupId>io.strimzi</groupId><artifactId>api</artifactId><version>{}</version></dependency>
<dependency><groupId>io.strimzi</groupId><artifactId>crd-generator</artifactId><version>{}</version></dependency>
</dependencies></project>"""
BASE: Final = "k8s.io/component-base/version"
"""Package with the version of the server, which the chart reads."""
GO: Final = {"GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0"}
HOW: Final = "python -m tests.support.kubernetes_programs builds it"


def program(name: str) -> Path | None:
    """Return the place of a built program; None if it is not there."""
    place = FOLDER / "bin" / name
    return place if place.exists() else None


def need(*names: str) -> None:
    """Skip the test if a program is not there."""
    missing = [name for name in names if program(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} missing: {HOW}")


@functools.cache
def version(module: str) -> str:
    """Return the pinned version of a module."""
    lines = (PINNED / "go.mod").read_text().splitlines()
    return next(words[1] for words in map(str.split, lines) if len(words) > 1 and words[0] == module)


def build(name: str) -> None:
    """Build a program; one that is there is kept if nothing of it has changed."""
    kubernetes = version("k8s.io/kubernetes")
    _, minor, _ = kubernetes.split(".")
    flags = f"-s -w -X {BASE}.gitVersion={kubernetes} -X {BASE}.gitMajor=1 -X {BASE}.gitMinor={minor}"
    words = ("go", "build", "-trimpath", f"-ldflags={flags}", "-o", str(FOLDER / "bin" / name), PACKAGES[name])
    _run(words, PINNED, GO)


def copy_definitions() -> None:
    """Copy the definitions of the operators that publish them as modules of Go."""
    DEFINITIONS.mkdir(parents=True, exist_ok=True)
    for module, files in DEFINED.items():
        for file in files:
            shutil.copy(_module_folder(module) / file, DEFINITIONS)


def make_strimzi_definitions() -> None:
    """Make Strimzi's definitions with its own generator, from its own classes."""
    DEFINITIONS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pom.xml").write_text(POM.format(*STRIMZI))
        _run(("mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder / 'lib'}"), folder)
        wanted = [
            f"io.strimzi.api.kafka.model.{each}={DEFINITIONS / f'kafka.strimzi.io_{plural}.yaml'}"
            for plural, each in STRIMZI_KINDS.items()
        ]
        generator = "io.strimzi.crdgenerator.CrdGenerator"
        _run(("java", "-cp", f"{folder / 'lib'}/*", generator, "--yaml", *wanted), folder)


def copy_stages() -> None:
    """Copy the stages of kwok."""
    STAGES.mkdir(parents=True, exist_ok=True)
    folder = _module_folder(f"sigs.k8s.io/kwok@{version('sigs.k8s.io/kwok')}")
    for file in STAGED:
        shutil.copy(folder / "kustomize" / "stage" / file, STAGES)


def _module_folder(module: str) -> Path:
    """Return the folder of a downloaded module; the checksum database has confirmed it."""
    command = ("go", "mod", "download", "-json", module)
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    if "Error" in found:
        sys.exit(f"{module}: {found['Error']}")
    return Path(found["Dir"])


def _run(command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None) -> None:
    if shutil.which(command[0]) is None:
        sys.exit(f"{command[0]} is not installed")
    print(*command, flush=True)
    done = subprocess.run(command, cwd=folder, env={**os.environ, **(variables or {})}, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} failed: {done.returncode}")


def main(names: Sequence[str]) -> None:
    """Build the named programs, or all of them and the definitions."""
    (FOLDER / "bin").mkdir(parents=True, exist_ok=True)
    if not names:
        copy_definitions()
        make_strimzi_definitions()
        copy_stages()
    for name in names or PACKAGES:
        build(name)


if __name__ == "__main__":
    main(sys.argv[1:])
