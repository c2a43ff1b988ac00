"""Programs that a machine may lack: marks that skip their tests."""

from __future__ import annotations

import shutil

import pytest


def _needs(program: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{package} is not installed")


curl = _needs("curl", "curl")
mosquitto_clients = _needs("mosquitto_sub", "mosquitto-clients")
openssl = _needs("openssl", "openssl")
