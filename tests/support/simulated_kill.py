"""Simulated end of a process or a machine, raised where a kill or a power cut would strike."""

from __future__ import annotations


class SimulatedKill(BaseException):
    """Kill or power cut, which no handler of the product may catch."""
