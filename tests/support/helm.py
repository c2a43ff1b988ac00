"""Helm for tests of the chart: renders it with values; tests are skipped where it is missing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

CHART: Final = Path(__file__).parents[2] / "cloud" / "deploy" / "chart"
KUBERNETES: Final = "1.34.0"
"""Version to render for."""
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


def helm() -> str:
    """Return the program; skip the test without it."""
    found = shutil.which("helm")
    if found is None:
        pytest.skip("helm is not installed")
    return found


def run_helm(*arguments: str, values: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Helm with a file of values."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [helm(), *arguments, "--kube-version", KUBERNETES, "--values", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def render(values: dict[str, Any], folder: Path, *options: str) -> list[dict[str, Any]]:
    """Return the resources of a release `fleet`."""
    done = run_helm("template", "fleet", str(CHART), *options, values=values, folder=folder)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each is not None]
