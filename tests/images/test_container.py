"""Images of gateway and hub, built without a daemon and run from their layers, carry a message to the lake."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from images.cli import image
from tests.support.lake import rows

pytestmark = [
    pytest.mark.images,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    pytest.mark.skipif(shutil.which("buildah") is None, reason="buildah is not installed"),
    pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed"),
    pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed"),
]

DATA = "var/lib/waypost"

SERVE = """
set -eu
ip link set lo up
for root in "$HUB" "$GATEWAY"; do  # what an engine gives
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    printf '127.0.0.1 localhost\\n' > "$root/etc/hosts"
done
into() {
    root=$1; shift
    exec chroot "$root" setpriv --reuid=1883 --regid=1883 --clear-groups env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}
inside() { (into "$@"); }
soon() {
    for _ in $(seq 600); do if "$@" > /dev/null 2>&1; then return; fi; sleep 0.5; done
    echo "never: $*" >&2
    exit 1
}
says() { inside "$GATEWAY" waypost status --data /var/lib/waypost --json | grep -q "$1"; }
at_hub() { inside "$HUB" waypost "$@" --data /var/lib/waypost; }
attested() { at_hub gateway show hall --json | grep -q '"settings": *"[0-9a-f]'; }

into "$HUB" $HUB_ENTRY > "$OUT/hub" 2>&1 &
hub=$!
soon inside "$HUB" /opt/waypost/bin/python /opt/waypost/health
token=$(at_hub token create)
settings="WAYPOST_NAME=Hall WAYPOST_HUB=amqps://localhost:5671 WAYPOST_TOKEN=$token WAYPOST_FORWARD=plant/#"
into "$GATEWAY" $settings $GATEWAY_ENTRY > "$OUT/gateway" 2>&1 &
gateway=$!
soon inside "$GATEWAY" waypost status --data /var/lib/waypost
soon attested
soon says '"connected"'
added=$(inside "$GATEWAY" waypost user add pump7 --data /var/lib/waypost --profile sensor)
password=$(echo "$added" | sed -n 's/.*password: *\\([^ ]*\\).*/\\1/p')
mosquitto_pub -q 1 -u pump7 -P "$password" -t plant/pump7/temp -m 21.5
echo acknowledged
kill $gateway
wait $gateway
into "$GATEWAY" $settings $GATEWAY_ENTRY >> "$OUT/gateway" 2>&1 &
gateway=$!
soon says '"backlog_messages": *0'
kill $gateway
wait $gateway
kill $hub
wait $hub
echo drained
"""
"""Runs in its own namespaces with the images' ports and mounts. A restarted gateway is already enrolled."""


class Unpacked:
    """Root of a container, and its image's configuration."""

    def __init__(self, archive: Path, folder: Path) -> None:
        layout, self.root = folder / "layout", folder / "root"
        layout.mkdir(parents=True)
        subprocess.run(["tar", "--extract", "--directory", layout, "--file", archive], check=True)
        [manifest] = json.loads((layout / "index.json").read_text())["manifests"]
        described = self._blob(layout, manifest)
        self.config: dict[str, Any] = self._blob(layout, described["config"])["config"]
        self.root.mkdir(parents=True)
        for layer in described["layers"]:
            words = ("tar", "--extract", "--numeric-owner", "--directory", str(self.root), "--file")
            subprocess.run([*words, str(self._place(layout, layer))], check=True)
        assert not list(self.root.rglob(".wh.*"))

    @staticmethod
    def _place(layout: Path, descriptor: dict[str, str]) -> Path:
        return layout / "blobs" / descriptor["digest"].replace(":", "/")

    def _blob(self, layout: Path, descriptor: dict[str, str]) -> dict[str, Any]:
        return dict(json.loads(self._place(layout, descriptor).read_text()))

    @property
    def entry(self) -> str:
        return " ".join((*self.config.get("Env", ()), *self.config["Entrypoint"]))


def built(role: str, folder: Path) -> Unpacked:
    done = CliRunner().invoke(image, ["container", role, "--oci", "--out", str(folder / role)])
    assert done.exit_code == 0, done.output
    [archive] = folder.glob(f"waypost-{role}-*.oci.tar")
    return Unpacked(archive, folder / f"{role}-unpacked")


def test_message_reaches_the_lake_from_a_device(tmp_path: Path) -> None:
    hub, gateway = built("hub", tmp_path), built("gateway", tmp_path)
    for each in (hub, gateway):
        assert each.config["User"] == "1883:1883"
        assert list(each.config["Volumes"]) == [f"/{DATA}"]
    assert not list(gateway.root.glob("usr/bin/python3*"))
    out = tmp_path / "out"
    out.mkdir()
    roots = {"HUB": str(hub.root), "GATEWAY": str(gateway.root), "OUT": str(out)}
    entries = {"HUB_ENTRY": hub.entry, "GATEWAY_ENTRY": gateway.entry}
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", SERVE],
        capture_output=True, text=True, timeout=1800, check=False, env={"PATH": os.environ["PATH"], **roots, **entries},
    )  # fmt: skip
    said = "".join(file.read_text() for file in out.iterdir())
    assert done.stdout.split() == ["acknowledged", "drained"], done.stderr + said
    [row] = rows(hub.root / DATA / "lake", "telemetry")
    assert (row["gateway"], row["body"]) == ("hall", b"21.5")
