"""Pods within rendered resources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def templates_of(resources: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the templates of pods: of Deployments, Jobs and CronJobs."""
    for each in resources:
        if each["kind"] in ("Deployment", "Job"):
            yield each["spec"]["template"]
        elif each["kind"] == "CronJob":
            yield each["spec"]["jobTemplate"]["spec"]["template"]
