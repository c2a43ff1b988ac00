"""Publishing Will Messages (MQTT 5 section 3.1.2.5); when that is due, sessions decide."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.message import Run
from edge.broker.contract import Refusal
from edge.broker.mqtt.events import Will
from edge.broker.router import Router


class WillOrigin:
    """The origin of a Will Message: nobody waits for an answer."""

    def __init__(self, name: str) -> None:
        self.name = name

    def accepted(self, tokens: Sequence[int]) -> None:
        """Nobody to tell."""

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        """Nobody to tell."""


def publish_will(router: Router, client_id: str, will: Will) -> None:
    """Publish a Will Message on behalf of a client that is gone."""
    run = will.run
    copy = Run(run.address, run.device or client_id, run.flags, run.properties, list(run.bodies))
    router.publish(WillOrigin(client_id), copy, ())
