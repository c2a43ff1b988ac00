"""`./waypost demo`: started by the launcher, from whatever folder its user is in."""

from __future__ import annotations

from edge.appliance.program import program_name
from tests.demo.cli import demo

demo(prog_name=f"{program_name()} demo")
