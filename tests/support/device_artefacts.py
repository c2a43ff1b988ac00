"""Gateway that holds an image for devices which have no HTTP, and the reports that these send."""

from __future__ import annotations

import json
import queue
import random
from pathlib import Path
from typing import Final

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edge.appliance.artefacts.limits import CHUNK_BYTES_MAX
from tests.support.artefact_gateway import ArtefactGateway
from tests.support.artefact_hub import ArtefactHubServer
from tests.support.artefacts import KEY
from tests.support.configured_gateway import address, gateway_with, resources, user
from tests.support.processes import Waypost

IMAGE: Final = random.Random(5).randbytes(7 * CHUNK_BYTES_MAX + 100)
WAIT_S: Final = 60.0
DEVICES: Final = tuple(f"pump-{number}" for number in range(1, 9))


def gateway_with_image(folder: Path) -> Waypost:
    """Return a gateway that holds an image for ``pump-*``."""
    wanted = {"name": "blinker", "version": "1.2.0", "devices": ["pump-*"]}
    with ArtefactHubServer() as hub:
        keeper = ArtefactGateway(folder / "gw", hub.port)
        keeper.want(wanted)
        hub.add(IMAGE)
        keeper.fetch()
    spec = {"trustedKeys": [KEY.public.pem], "artefacts": [wanted]}
    artefacts = {"apiVersion": "waypost/v1", "kind": "Artefacts", "metadata": {"name": "gateway"}, "spec": spec}
    text = resources(
        address("plant", "plant/#", "queue"),
        *(user(name, "send", '"plant/%u/#"') for name in DEVICES),
        user("reader", "recv", '"plant/#"'),
        f"---\n{json.dumps(artefacts)}\n",
    )
    return gateway_with(folder, text)


def reports(gateway: Waypost, device: str) -> list[str]:
    """Return the states in the messages about reports, and remove these."""
    found: queue.Queue[bytes] = queue.Queue()
    reader = paho.Client(CallbackAPIVersion.VERSION2, "reader")
    reader.username_pw_set("reader", "reader")
    reader.on_message = lambda _client, _data, message: found.put(bytes(message.payload))
    reader.connect("127.0.0.1", gateway.port("mqtt"))
    reader.loop_start()
    try:
        reader.subscribe(f"plant/{device}/artefact-report", 1)
        return [json.loads(found.get(timeout=WAIT_S))["state"]]
    finally:
        reader.disconnect()
        reader.loop_stop()
