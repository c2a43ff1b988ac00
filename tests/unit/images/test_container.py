"""What containers are built from: nothing runs as root, nothing is downloaded while one is built, and names agree."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from edge.appliance.first_boot import environment
from images.container import building
from images.steps import Steps

ROLES = {"gateway": building.GATEWAY, "hub": building.HUB}


@pytest.mark.parametrize("folder", ROLES.values(), ids=ROLES)
def test_it_runs_as_nobody_in_particular_with_one_volume(folder: Path) -> None:
    recipe = (folder / "Dockerfile").read_text()
    [service] = yaml.safe_load((folder / "docker-compose.yml").read_text())["services"].values()
    assert re.search(r"(?m)^USER 1883:1883$", recipe)
    assert re.findall(r"(?m)^VOLUME (.*)$", recipe) == ["/var/lib/waypost"]
    assert service["volumes"] == ["waypost:/var/lib/waypost"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    exposed = re.findall(r"(?m)^EXPOSE (.*)$", recipe)[0].split()
    assert [port.partition(":")[2] for port in service["ports"]] == exposed


@pytest.mark.parametrize("folder", ROLES.values(), ids=ROLES)
def test_building_it_downloads_nothing(folder: Path) -> None:
    recipe = (folder / "Dockerfile").read_text()
    assert not re.search(r"apt|curl|wget|http", recipe)
    assert "pip install" not in recipe or "--no-index" in recipe


def test_the_gateway_is_given_every_variable_it_knows() -> None:
    service = yaml.safe_load((building.GATEWAY / "docker-compose.yml").read_text())["services"]["gateway"]
    known = [environment.NAME, environment.HUB, environment.TOKEN, environment.FORWARD, environment.KEEP_FREE]
    assert service["environment"] == known


def test_scripts_are_what_they_say() -> None:
    subprocess.run(["/bin/sh", "-n", str(building.GATEWAY / "start")], check=True)
    assert (building.GATEWAY / "start").stat().st_mode & 0o111
    ast.parse((building.HUB / "health").read_text())


def test_a_gateways_folder_has_its_packages(tmp_path: Path) -> None:
    made = tmp_path / "package-x86_64-0" / "waypost_1_amd64.deb"
    made.parent.mkdir()
    made.write_bytes(b"a package")
    folder = building.gateway(Steps(tmp_path / "cache", lambda _: None), {"amd64": made})
    assert (folder / "packages" / made.name).read_bytes() == b"a package"
    assert sorted(path.name for path in folder.iterdir()) == ["Dockerfile", "docker-compose.yml", "packages", "start"]
