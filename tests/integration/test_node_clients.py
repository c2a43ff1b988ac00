"""Clients of Node.js: MQTT.js and rhea, where they are installed (`tests/support/node.py`)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.bearer import SCOPE, resources_with
from tests.support.configured_gateway import gateway_with
from tests.support.issuer import TestIssuer
from tests.support.node import mqtt_js, rhea
from tests.support.processes import Waypost

WAIT_S = 60.0
COUNT = 20


def run(script: str, *arguments: object) -> list[str]:
    """Run a script; return its output by line, up to "done"."""
    done = subprocess.run(
        ["node", "-e", script, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=WAIT_S
    )
    *lines, last = done.stdout.split("\n")[:-1] or [""]
    assert last == "done", (done.stdout, done.stderr)
    return lines


BURST = """
const [port, version, qos, count] = process.argv.slice(1).map(Number);
const client = require('mqtt').connect({host: '127.0.0.1', port, protocolVersion: version, reconnectPeriod: 0});
let acknowledged = 0;
client.on('disconnect', (packet) => console.error('DISCONNECT', packet.reasonCode));
client.on('connect', () => {
  for (let i = 0; i < count; i++) client.publish('burst/a', `${i}`, {qos}, (error) => {
    if (error) { console.error(error); process.exit(1); }
    if (++acknowledged === count) { console.log('done'); client.end(); }
  });
});
"""


@mqtt_js
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_js_sends_bursts_of_ten_thousand(gateway: Waypost, version: int, qos: int) -> None:
    """MQTT.js does not limit its messages in flight (MQTT 5 section 4.9)."""
    run(BURST, gateway.port("mqtt"), version, qos, 10_000)


SHARED_QUEUE = """
const mqtt = require('mqtt');
const [port, count] = process.argv.slice(1).map(Number);
const open = (properties) => mqtt.connectAsync(
  {host: '127.0.0.1', port, protocolVersion: 5, reconnectPeriod: 0, properties});
(async () => {
  const small = await open({maximumPacketSize: 500}), large = await open({}), publisher = await open({});
  let little = 0;
  const came = new Set();
  const look = () => {
    if (came.size + little === 2 * count) { console.log(little); console.log('done'); process.exit(0); }
  };
  small.on('message', (topic, body) => { if (body.length > 500) process.exit(1); little++; look(); });
  large.on('message', (topic, body) => { if (body.length > 500) came.add(body.toString()); else little++; look(); });
  await small.subscribeAsync('queue/js', {qos: 1});
  await large.subscribeAsync('queue/js', {qos: 1});
  for (let i = 0; i < count; i++) {
    await publisher.publishAsync('queue/js', `${i}`.padEnd(5000, 'x'), {qos: 1});
    await publisher.publishAsync('queue/js', 'little', {qos: 1});
  }
})().catch((error) => { console.error(error); process.exit(1); });
"""


@mqtt_js
def test_mqtt_js_with_a_small_maximum_packet_size_leaves_larger_messages(gateway: Waypost) -> None:
    assert run(SHARED_QUEUE, gateway.port("mqtt"), COUNT) == [str(COUNT)]


REFUSED = """
const [mqttPort, amqpPort] = process.argv.slice(1).map(Number);
const rhea = require('rhea');
const refuse = (topic, body, packet, done) => done(null, 0x87);
const consumer = require('mqtt').connect(
  {host: '127.0.0.1', port: mqttPort, protocolVersion: 5, reconnectPeriod: 0, customHandleAcks: refuse});
consumer.on('error', (error) => { console.error(error); process.exit(1); });
consumer.subscribe('anycast/js', {qos: 1}, () => {
  const sender = rhea.connect({host: '127.0.0.1', port: amqpPort, reconnect: false}).open_sender('anycast/js');
  sender.once('sendable', () => sender.send({body: 'refused', durable: true}));
  for (const outcome of ['accepted', 'rejected', 'released', 'modified'])
    sender.on(outcome, () => { console.log(outcome); console.log('done'); process.exit(0); });
});
"""


@mqtt_js
@rhea
def test_rhea_gets_the_refusal_of_mqtt_js(gateway: Waypost) -> None:
    assert run(REFUSED, gateway.port("mqtt"), gateway.port("amqp")) == ["rejected"]


TOKEN = """
const [port, username, token] = process.argv.slice(1);
const connection = require('rhea').connect({host: '127.0.0.1', port: Number(port), reconnect: false, username, token});
const say = (what) => { console.log(what); console.log('done'); process.exit(0); };
connection.on('connection_error', (context) => say(context.error.condition));
connection.on('error', () => say('refused'));
connection.open_receiver('jobs').on('message', (context) => say(context.message.body));
const sender = connection.open_sender('jobs');
sender.once('sendable', () => sender.send({body: 'work', durable: true}));
"""


@rhea
def test_rhea_logs_in_with_a_token_by_xoauth2(tmp_path: Path) -> None:
    with TestIssuer() as issuer, gateway_with(tmp_path, resources_with(issuer)) as gateway:
        port = gateway.port("amqp")
        assert run(TOKEN, port, "ann", issuer.token("ann", SCOPE)) == ["work"]
        (refused,) = run(TOKEN, port, "ann", issuer.token("ann", SCOPE, aud="other"))
        assert refused == "amqp:unauthorized-access"
        (refused,) = run(TOKEN, port, "bob", issuer.token("ann", SCOPE))
        assert refused == "amqp:unauthorized-access"
