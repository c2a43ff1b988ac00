"""The service of a package: as strict as the service of a checkout, and valid for systemd."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edge.appliance.initial.systemd import UNIT_NAME, unit
from images.errors import ImageError
from images.package import deb

ROOT = Path(__file__).parents[3]

UNIT = deb.HERE / UNIT_NAME
EXPOSURE_MAX = 2.0
"""Exposure that `systemd-analyze security` reports, of 10."""
OTHERWISE = {
    "ExecStart", "ExecStartPre", "LimitNOFILE", "ProtectHome", "ReadWritePaths", "StateDirectory", "StateDirectoryMode",
}  # fmt: skip
"""Settings that differ in a package."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def service(text: str) -> list[str]:
    lines = text.partition("[Service]\n")[2].partition("[Install]")[0].splitlines()
    return sorted(line for line in lines if line and not line.startswith("#") and line.split("=")[0] not in OTHERWISE)


def test_package_has_the_unit_of_a_checkout() -> None:
    assert "\nProtectHome=yes\n" in UNIT.read_text()
    assert service(UNIT.read_text()) == service(unit("gw", Path("/var/lib/waypost"), files=1, ports=[1883]))


@needs_systemd
def test_unit_grants_few_rights() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNIT)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    said = re.search(r"exposure level for waypost\.service: ([\d.]+)", done.stdout)
    assert said is not None, done.stdout
    assert float(said[1]) <= EXPOSURE_MAX


@needs_systemd
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("true") or "/bin/true"
    text = re.sub(r"(?m)^(ExecStart(?:Pre)?)=\S+", rf"\1={program}", UNIT.read_text())
    (tmp_path / UNIT_NAME).write_text(text.replace("file:/usr/share", "https://usr.share.invalid"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT_NAME)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert not [line for line in done.stderr.splitlines() if UNIT_NAME in line], done.stderr


def test_no_file_is_below_a_symbolic_link_of_the_system(tmp_path: Path) -> None:
    """Debian's /lib, /bin and /sbin are links into /usr; its release 13 warns of packages with files below them."""
    frozen = tmp_path / "frozen"
    frozen.mkdir()
    (frozen / "waypost").touch()
    deb._lay_out(tmp_path / "tree", frozen)
    assert {path.name for path in (tmp_path / "tree").iterdir()} == {"usr"}
    assert (tmp_path / "tree/usr/lib/systemd/system" / UNIT_NAME).is_file()
    assert all(
        "_WAYPOST_COMPLETE" in (tmp_path / "tree/usr/share" / place).read_text() for place in deb.COMPLETIONS.values()
    )


def test_frozen_gateway_has_every_file_that_it_reads() -> None:
    """PyInstaller takes only the modules by itself."""
    spec = ast.parse((ROOT / "images/frozen/gateway.spec").read_text())
    [patterns] = [
        ast.literal_eval(node.value)
        for node in spec.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DATA"
    ]
    code = (".py", ".pyi", ".md", ".c", ".h", ".so")
    read = [
        path.relative_to(ROOT)
        for package in ("bridge", "edge")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in code
    ]
    assert len(read) > 20
    assert not [path for path in read if not any(path.match(pattern) for pattern in patterns)]


@pytest.mark.parametrize("name", [*deb.SCRIPTS, "prepare"])
def test_scripts_are_posix(name: str) -> None:
    subprocess.run(["/bin/sh", "-n", str(deb.HERE / name)], check=True)


def test_required_c_library_is_read_from_the_binaries(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"\x7fELF\0GLIBC_2.4\0GLIBC_2.34\0")
    (tmp_path / "b").write_bytes(b"\x7fELF..\0GLIBC_2.9\0GLIBC_2.3.4\0")
    (tmp_path / "c.txt").write_bytes(b"\0GLIBC_2.99\0")
    assert deb.find_libc_version(tmp_path) == "2.34"
    with pytest.raises(ImageError, match="holds no program"):
        deb.find_libc_version(tmp_path / "a.so")


@pytest.mark.parametrize(("serves", "said"), [(True, ""), (False, "waypost does not serve yet")])
def test_package_installs_where_another_broker_uses_the_ports(tmp_path: Path, serves: bool, said: str) -> None:
    """Many a Raspberry Pi runs Mosquitto, and a package that is half installed stops every later `apt`."""
    (tmp_path / "systemd").mkdir()
    text = (deb.HERE / "postinst").read_text()
    text = text.replace("/usr/share/debconf/confmodule", str(tmp_path / "confmodule"))
    (tmp_path / "postinst").write_text(text.replace("/run/systemd/system", str(tmp_path / "systemd")))
    (tmp_path / "confmodule").write_text("db_stop() { :; }\n")
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for name in ("getent", "adduser", "deb-systemd-helper", "systemctl", "deb-systemd-invoke"):
        (stubs / name).write_text(f"#!/bin/sh\nexit {int(name == 'deb-systemd-invoke' and not serves)}\n")
        (stubs / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(tmp_path / "postinst"), "configure"], capture_output=True, text=True, check=False,
        env={"PATH": f"{stubs}:/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(said)
    assert bool(done.stderr) == bool(said)
