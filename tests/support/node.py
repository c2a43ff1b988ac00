"""Clients of Node.js: packages that a machine may have; the project depends on none of them."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def has_module(name: str) -> bool:
    """Return True when `NODE_PATH` has this package."""
    node = shutil.which("node")
    command = [node or "", "-e", f"require('{name}')"]
    return node is not None and subprocess.run(command, check=False, capture_output=True).returncode == 0


mqtt_js = pytest.mark.skipif(not has_module("mqtt"), reason="MQTT.js is not installed (npm install mqtt; NODE_PATH)")
rhea = pytest.mark.skipif(not has_module("rhea"), reason="rhea is not installed (npm install rhea ws; NODE_PATH)")
