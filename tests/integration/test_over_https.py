"""Networks that allow only HTTPS: enrolment, renewal and messages over one port of the hub.

The way leads through a proxy with authentication, while the link is cut and the hub is killed.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bridge.proxy import Proxy
from bridge.resources.endpoint import ListenEndpoint
from edge.appliance.identity.enrolling import renew
from edge.appliance.identity.exchange import HubEnrolmentClient, HubUnreachable
from tests.support.command import run_waypost
from tests.support.enrolled import landed, operator_uplink, run_fleet
from tests.support.http_proxy import HttpProxy
from tests.support.node import rhea
from tests.support.password_device import PasswordDevice
from tests.support.processes import Waypost, free_port, gateway_at, wait_until
from tests.support.tenants import tenant_hub

WAIT_S = 60.0


def test_gateway_enrols_and_sends_over_https_alone(tmp_path: Path) -> None:
    """The AMQP port is blocked, so the next URL is used. No message is lost or doubled over cuts and a kill."""
    amqps, https = free_port(), free_port()
    data = tmp_path / "hall"
    places = (f"--amqp=127.0.0.1:{amqps}", f"--http=127.0.0.1:{https}")
    with (
        Waypost(tmp_path / "hub.log", "hub", "run", "--data", str(tmp_path / "hub"), *places) as far,
        HttpProxy([https], "plant:s3cret%") as proxy,
    ):
        urls = (f"--hub=amqps://localhost:{amqps}", f"--hub=wss://localhost:{https}")
        told = ("--name", "hall", "--token", run_fleet(tmp_path, "token", "create"), "--forward", "plant/#")
        here = ("--mqtt", "127.0.0.1:0", "--amqp", "none", "--http", "127.0.0.1:0", "--https", "none")
        init = ("init", "--data", str(data), *urls, *told, *here)
        done = run_waypost(*init, "--proxy", f"http://127.0.0.1:{proxy.port}")
        assert done.returncode == 3
        assert "set its user name and password" in done.stderr
        assert proxy.refused[-1] == 407
        done = run_waypost(*init, "--proxy", f"http://plant:s3cret%25@127.0.0.1:{proxy.port}")
        assert done.returncode == 0, done.stderr
        assert f"at wss://localhost:{https}" in done.stdout
        assert "s3cret" not in done.stdout + done.stderr
        with gateway_at(data) as near:
            device = PasswordDevice(data, near.port("mqtt"))
            device.send(20)
            wait_until(lambda: len(landed(tmp_path)) == 20, timeout_s=WAIT_S, what="20 in the lake")
            assert operator_uplink(near)["endpoint"] == f"wss://localhost:{https}/"
            proxy.cut_after(1_000)
            device.send(20)
            wait_until(lambda: len(landed(tmp_path)) == 40, timeout_s=WAIT_S, what="40 in the lake")
            far.kill()
            device.send(20)
            far.start()
            wait_until(lambda: len(landed(tmp_path)) == 60, timeout_s=WAIT_S, what="60 in the lake")
            through = Proxy(host="127.0.0.1", port=proxy.port, username="plant", password="s3cret%")
            assert renew(data, HubEnrolmentClient(ListenEndpoint("localhost", https), proxy=through)).gateway == "hall"
            with pytest.raises(HubUnreachable, match="403 Forbidden"):
                renew(data, HubEnrolmentClient(ListenEndpoint("localhost", amqps), proxy=through))
            device.close()
            assert near.stop() == 0
        assert far.stop() == 0
    found = landed(tmp_path)
    assert [sequence for _, _, sequence in found] == list(range(60))
    assert len({epoch for _, epoch, _ in found}) == 1
    assert "s3cret" not in (tmp_path / "hall.log").read_text()


RHEA = """
const rhea = require('rhea');
const [url, ca] = process.argv.slice(1);
const details = rhea.websocket_connect(require('ws'))(url, ['amqp'], {ca: require('fs').readFileSync(ca)});
const connection = rhea.connect(
  {connection_details: details, username: 'app@acme', password: 'app@acme', reconnect: false});
let seen = 0, accepted = 0, sent = 0;
const done = () => { if (seen === 50 && accepted === 50) { console.log('done'); connection.close(); } };
connection.on('connection_error', (context) => { console.error(context.connection.error); process.exit(1); });
connection.on('disconnected', (context) => { if (seen < 50) { console.error(context.error); process.exit(1); } });
connection.open_receiver('app/rhea');
connection.on('receiver_open', () => {
  const sender = connection.open_sender('app/rhea');
  sender.on('sendable', () => {
    while (sender.sendable() && sent < 50) sender.send({body: 'x'.repeat(1000 * sent++)}); });
  sender.on('accepted', () => { accepted++; done(); });
});
connection.on('message', (context) => { if (context.message.body.length === 1000 * seen) seen++; done(); });
"""


@rhea
def test_rhea_connects_to_a_hub_over_websocket(tmp_path: Path) -> None:
    with tenant_hub(tmp_path, {"app@acme": ("send:app/#", "recv:app/#")}) as hub:
        url = f"wss://localhost:{hub.process.port('https')}/amqp"
        done = subprocess.run(
            ["node", "-e", RHEA, url, hub.authority.certificate],
            check=False, capture_output=True, text=True, timeout=WAIT_S,
        )  # fmt: skip
        assert done.stdout == "done\n", done.stderr
