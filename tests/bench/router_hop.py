"""Anycast over one hop of a router network, compared with one gateway: `python -m tests.bench.router_hop`."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from tests.bench.load import LoadGenerators
from tests.support.command import PROGRAM
from tests.support.processes import Waypost

ROUNDS = 5
LOAD = ("-a", "jobs/x", "-c", "5", "-n", "200000", "-s", "100", "-R", "1", "-u", "all", "-P", "secret")
CONFIG = """
{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: {name}}}, spec: {{listeners: {{amqp: "127.0.0.1:0"}}}}}}
---
{{apiVersion: waypost/v1, kind: AddressSpace, metadata: {{name: default}},
  spec: {{authenticationService: {{name: standard}}{connectors}}}}}
---
{{apiVersion: waypost/v1, kind: MessagingUser, metadata: {{name: default.all}},
  spec: {{username: all, authentication: {{type: password, password: c2VjcmV0}},
         authorization: [{{addresses: ["$network"], operations: [relay]}},
                         {{addresses: ["jobs/#"], operations: [send, recv]}}]}}}}
---
{{apiVersion: waypost/v1, kind: Address, metadata: {{name: default.jobs}}, spec: {{address: jobs/#, type: anycast}}}}
"""
TO = (
    ", connectors: [{{name: far, type: router, endpointHosts: [{{host: 127.0.0.1, port: {port}}}],"
    " credentials: {{username: all, password: secret}}}}]"
)


def gateway(folder: Path, name: str, connectors: str = "") -> Waypost:
    """Return a gateway that is not started."""
    (folder / f"{name}.yaml").write_text(CONFIG.format(name=name, connectors=connectors))
    arguments = ("run", "--data", str(folder / name), "--config", str(folder / f"{name}.yaml"))
    return Waypost(folder / f"{name}.log", *arguments, program=PROGRAM)


def main() -> int:
    """Print messages a second through one gateway and over one hop, in turns, and the median of the ratios."""
    with tempfile.TemporaryDirectory() as folder:
        place, load = Path(folder), LoadGenerators(Path(folder))
        with gateway(place, "far") as far, gateway(place, "near", TO.format(port=far.port("amqp"))) as near:
            for each in (near, far):  # more logins at once wait for the check of the password than it takes
                load.run("amqpload", each.port("amqp"), "-q", str(far.port("amqp")), *LOAD, "-c", "1", "-n", "1000")
            ratios: list[float] = []
            for _ in range(ROUNDS):
                direct = load.run("amqpload", far.port("amqp"), *LOAD)["recv_per_s"]
                hop = load.run("amqpload", near.port("amqp"), "-q", str(far.port("amqp")), *LOAD)["recv_per_s"]
                ratios.append(hop / direct)
                print(f"direct {direct:,.0f}/s, one hop {hop:,.0f}/s, ratio {ratios[-1]:.2f}", flush=True)
            print(f"median ratio {statistics.median(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
