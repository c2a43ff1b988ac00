"""Entry point for the launcher, from any working directory."""

from __future__ import annotations

from edge.appliance.program import program_name
from tests.demo.cluster.cli import cluster_demo

cluster_demo(prog_name=f"{program_name()} hub cluster-demo")
