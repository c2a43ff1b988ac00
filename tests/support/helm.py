"""Helm for tests of the chart: renders it with values.

Where Helm is missing, as in most distributions, its recorded outcomes take its place: they are for exactly these files
of the chart and these values. With `WAYPOST_RECORD_HELM=1` and Helm, `tests/unit/cloud/test_chart.py` records them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import lzma
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml

CHART: Final = Path(__file__).parents[2] / "cloud" / "deploy" / "chart"
KUBERNETES: Final = "1.34.0"
"""Version to render for."""
RECORDED: Final = Path(__file__).parent / "rendered_chart.json.xz"
RECORD: Final = "WAYPOST_RECORD_HELM"
AGAIN: Final = f"run tests/unit/cloud/test_chart.py with {RECORD}=1, and helm in PATH"
SMALLEST: Final[dict[str, Any]] = {
    "names": ["hub.example"],
    "lake": {"place": "s3://fleet/lake", "existingSecret": "waypost-lake"},
    "registry": {"url": "postgresql://waypost@postgres/waypost", "existingSecret": "waypost-registry"},
    "authority": {"existingSecret": "waypost-authority", "caConfigMap": "waypost-ca"},
}
"""The required values, and the Secrets that most installations have."""
EVERYTHING: Final[dict[str, Any]] = {
    **SMALLEST,
    "registry": {},
    "hub": {"oidc": {"issuer": "https://login.example/realms/waypost", "audience": "waypost"}},
    "console": {
        "ingress": {"enabled": True, "host": "hub.example", "tlsSecret": "console-tls"},
        "httpRoute": {"enabled": True, "host": "hub.example", "parentRefs": [{"name": "public"}]},
    },
    "autoscaling": {"enabled": True},
    "monitoring": {
        "serviceMonitor": {
            "enabled": True,
            "basicAuth": {"username": {"name": "scrape", "key": "user"}, "password": {"name": "scrape", "key": "key"}},
        },
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "prove": {"pushgateway": "http://pushgateway:9091/"},
    "backup": {"enabled": True, "existingClaim": "backups", "existingSecret": "backup-passphrase"},
    "analytics": {"enabled": True},
    "cloudNativePg": {"enabled": True},
    "keycloak": {"enabled": True},
    "messaging": {
        "url": "amqps://artemis:5671",
        "caSecret": "artemis-ca",
        "user": "waypost",
        "existingSecret": "artemis-user",
    },
    "kafka": {
        "brokers": ["plant-kafka-bootstrap:9093"],
        "caSecret": "plant-cluster-ca-cert",
        "strimzi": {"enabled": True, "cluster": "plant"},
    },
}
"""Values that turn on everything that can be on together."""
CHOICES: Final[dict[str, Any]] = {
    **SMALLEST,
    "replicas": 5,
    "names": ["hub.example", "192.0.2.7"],
    "image": {"repository": "registry.example/waypost-hub", "tag": "1.2.3", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "lake": {"place": "s3://fleet/lake", "region": "eu-central-1", "endpoint": "https://store.example:9000"},
    "registry": {
        "url": "postgresql://waypost@postgres.data:6432/waypost?sslmode=verify-full",
        "existingSecret": "waypost-registry",
        "passwordKey": "pass",
    },
    "hub": {"certificateDays": 30, "tenantQuota": {"waitingBytes": 134_217_728}, "trustedProxies": ["10.244.0.0/16"]},
    "env": [{"name": "PGSSLROOTCERT", "value": "/etc/ssl/certs/ca-certificates.crt"}],
    "podDisruptionBudget": {"maxUnavailable": 2},
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "hub"}},
        }
    ],
    "nodeSelector": {"kubernetes.io/arch": "arm64"},
    "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "hubs", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]},
                }
            ]
        }
    },
    "priorityClassName": "system-cluster-critical",
    "podAnnotations": {"example.com/team": "fleet"},
    "podLabels": {"example.com/team": "fleet"},
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/waypost"}},
    "service": {
        "annotations": {"service.beta.kubernetes.io/aws-load-balancer-type": "external"},
        "loadBalancerSourceRanges": ["198.51.100.0/24"],
        "httpsPort": 0,
        "sessionAffinity": "ClientIP",
    },
    "console": {
        "httpRoute": {
            "enabled": True,
            "host": "console.example",
            "parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "https"}],
            "sessionPersistence": {"type": "Cookie", "sessionName": "waypost-hub"},
        }
    },
    "networkPolicy": {
        "from": [{"ipBlock": {"cidr": "198.51.100.0/24"}}],
        "egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 6432, "protocol": "TCP"}]}],
    },
    "monitoring": {
        "serviceMonitor": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "oauth2": {
                "clientId": {"secret": {"name": "scrape", "key": "id"}},
                "clientSecret": {"name": "scrape", "key": "secret"},
                "tokenUrl": "https://login.example/token",
            },
        },
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    },
    "messaging": {
        "caSecret": "messages-ca",
        "existingSecret": "messages-user",
        "addresses": {"tenants": ["acme", "default"]},
        "rabbitmq": {
            "enabled": True,
            "image": "rabbitmq:4.1",
            "tlsSecret": "messages-tls",
            "storageClass": "fast",
            "replies": ["app"],
        },
    },
    "kafka": {"brokers": ["kafka:9092"]},
    "maintain": {"enabled": True},
}
"""Values that exclude those of `EVERYTHING`, and those that are empty by default."""
PROFILES: Final = {"smallest": SMALLEST, "everything": EVERYTHING, "choices": CHOICES}


class HelmRun(NamedTuple):
    """Outcome of a command of Helm."""

    returncode: int
    stdout: str
    stderr: str


def run_helm(*arguments: str, values: dict[str, Any], folder: Path) -> HelmRun:
    """Run Helm with a file of values. Where Helm is not installed, return its recorded outcome for this chart."""
    key = hashlib.sha256(json.dumps([arguments, values], sort_keys=True).replace(str(CHART), "CHART").encode())
    program = shutil.which("helm")
    if program is None or RECORD not in os.environ:
        recorded = read_recording().get(key.hexdigest())
        assert recorded is not None, f"Helm was not recorded with these values: {AGAIN}"
        if program is None:
            return recorded
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [program, *arguments, "--kube-version", KUBERNETES, "--values", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    outcome = HelmRun(done.returncode, done.stdout, done.stderr.replace(str(CHART), "CHART"))
    if RECORD in os.environ:
        record(key.hexdigest(), outcome)
    return outcome


def render(values: dict[str, Any], folder: Path, *options: str) -> list[dict[str, Any]]:
    """Return the resources of a release `fleet`."""
    done = run_helm("template", "fleet", str(CHART), *options, values=values, folder=folder)
    assert done.returncode == 0, done.stderr
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML has it
    return [each for each in yaml.load_all(done.stdout, Loader=loader) if each is not None]


class Recording(msgspec.Struct):
    """Outcomes of Helm for one state of the chart."""

    chart: str
    """`chart_digest` of that state."""
    runs: dict[str, HelmRun] = {}
    """Outcomes by the digest of arguments and values."""


@functools.cache
def read_recording() -> dict[str, HelmRun]:
    """Return the recorded outcomes of this chart."""
    found = _read()
    assert found.chart == chart_digest(), f"the chart has changed since Helm was recorded: {AGAIN}"
    return found.runs


def record(key: str, outcome: HelmRun) -> None:
    """Add an outcome; those of an older chart are dropped."""
    found = _read() if RECORDED.exists() else Recording("")
    if found.chart != chart_digest():
        found = Recording(chart_digest())
    found.runs[key] = outcome
    found.runs = dict(sorted(found.runs.items()))
    RECORDED.write_bytes(lzma.compress(msgspec.json.encode(found)))


def chart_digest() -> str:
    """Return the SHA-256 of the chart's files, and of the version that they are rendered for."""
    digest = hashlib.sha256(KUBERNETES.encode())
    for path in sorted(each for each in CHART.rglob("*") if each.is_file() and each.suffix != ".md"):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(CHART)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _read() -> Recording:
    return msgspec.json.decode(lzma.decompress(RECORDED.read_bytes()), type=Recording)
