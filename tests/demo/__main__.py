"""`./waypost demo`: entry point for the launcher, from any working directory."""

from __future__ import annotations

from edge.appliance.program import program_name
from tests.demo.cli import demo

demo(prog_name=f"{program_name()} demo")
