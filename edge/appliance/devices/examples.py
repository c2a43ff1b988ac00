"""Settings of a new device to paste: a configuration, a program or a command that works with its gateway. Pure.

Each example uses the addresses of the profile ``sensor``. `tests/integration/test_device_commands.py` runs all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from bridge.hidden import hides
from bridge.resources.endpoint import authority
from edge.output.text import word

CA_FILE: Final = "gateway.pem"
"""File with the certificate that a device with TLS trusts."""
MQTT: Final = ("mqtts", "mqtt")
"""Listeners for MQTT, the best first."""
HTTP: Final = ("https", "http")
"""Listeners for HTTP, the best first."""
_READING: Final = '{"celsius": 21.5}'


@hides("password")
class DeviceLogin(NamedTuple):
    """Gateway and login of a device."""

    scheme: str
    host: str
    port: int
    name: str
    password: str

    @property
    def tls(self) -> bool:
        """True for a listener with TLS."""
        return self.scheme.endswith("s")

    @property
    def url(self) -> str:
        """Address with user and password, for a QR code."""
        login = f"{quote(self.name, safe='')}:{quote(self.password, safe='')}"
        return f"{self.scheme}://{login}@{authority(self.host, self.port)}"


class DeviceExample(NamedTuple):
    """Kind of an example."""

    listeners: Sequence[str]
    """Listeners that it can use, the best first."""
    text: Callable[[DeviceLogin], str]


def _micropython(login: DeviceLogin) -> str:
    settings = {
        "GATEWAY": login.host,
        "PORT": login.port,
        "USERNAME": login.name,
        "PASSWORD": login.password,
        "TLS_CA_FILE": CA_FILE if login.tls else "",
        "DEVICE": login.name,
        "ADDRESS": f"plant/{login.name}/board",
        "COMMAND_ADDRESS": f"command/{login.name}/#",
        "ANSWER_ADDRESS": f"command-response/{login.name}",
        "STATUS_ADDRESS": f"status/{login.name}",
    }
    head = "# config.py of firmware_examples/raspberry_pi_pico_w_mqtt: replace the lines with these names"
    return "\n".join([head, *(f"{name} = {value!r}" for name, value in settings.items())])


def _python(login: DeviceLogin) -> str:
    lines = [
        "import paho.mqtt.client as mqtt  # pip install paho-mqtt",
        "",
        f"client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, {login.name!r}, clean_session=False)",
        f"client.username_pw_set({login.name!r}, {login.password!r})",
        *([f"client.tls_set({CA_FILE!r})"] if login.tls else []),
        f"client.connect({login.host!r}, {login.port})",
        "client.loop_start()",
        f"sent = client.publish({f'plant/{login.name}/test'!r}, {_READING!r}, qos=1)",
        "sent.wait_for_publish(20)",
        "client.disconnect()",
        "client.loop_stop()",
        "print('on the disk of the gateway' if sent.is_published() else 'not acknowledged')",
    ]
    return "\n".join(lines)


def _mosquitto(login: DeviceLogin) -> str:
    trust = ["--cafile", CA_FILE] if login.tls else []
    about = ["-h", login.host, "-p", str(login.port), "-u", login.name, "-P", login.password, *trust, "-q", "1"]
    words = ["mosquitto_pub", *about, "-t", f"plant/{login.name}/test", "-m", _READING]
    return " ".join(word(each) for each in words)


def _curl(login: DeviceLogin) -> str:
    place = f"{login.scheme}://{authority(login.host, login.port)}/t/plant/{quote(login.name, safe='')}/test"
    trust = ["--cacert", CA_FILE] if login.tls else []
    words = ["curl", "-i", "-u", f"{login.name}:{login.password}", *trust, "-d", _READING, place]
    return " ".join(word(each) for each in words)


EXAMPLES: Final[Mapping[str, DeviceExample]] = {
    "micropython": DeviceExample(MQTT, _micropython),
    "python": DeviceExample(MQTT, _python),
    "mosquitto": DeviceExample(MQTT, _mosquitto),
    "curl": DeviceExample(HTTP, _curl),
}
"""Examples by the word of `--example`."""
