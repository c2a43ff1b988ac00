"""Systemd unit of a gateway: its own user, always restarted, with write access to its data only.

The gateway notifies systemd when it is ready, and then regularly from its event loop (`edge.health.service_manager`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from edge.appliance.program import VARIABLE, command
from edge.output.text import word

UNIT_NAME: Final = "waypost.service"
USER: Final = "waypost"
PRIVILEGED_PORTS_END: Final = 1024

_HOMES: Final = ("/home", "/root", "/run/user")

_UNIT: Final = """\
[Unit]
Description=Waypost gateway {gateway}
Wants=network-online.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
User={user}
Group={user}
ExecStart={command}
SyslogIdentifier=waypost
{named}Restart=always
RestartSec=2
# Reading a large store takes long on a card; after that the event loop has to send keep-alives.
TimeoutStartSec=900
WatchdogSec=60
TimeoutStopSec=60
# Answer devices and monitors while other programs are busy: CPUWeight= against other units, Nice= within one.
CPUWeight=1000
Nice=-10
LimitNOFILE={files}
LimitCORE=0
UMask=0077

ReadWritePaths={data}
ProtectSystem=strict
ProtectHome={home}
PrivateTmp=yes
PrivateDevices=yes
PrivateMounts=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectProc=invisible
NoNewPrivileges=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
{capabilities}
SystemCallArchitectures=native
# adjtimex: query whether the clock is synchronized; setting the clock would take a capability.
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallFilter=adjtimex clock_adjtime
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def unit(gateway: str, data: Path, *, files: int, ports: Sequence[int], launcher: Path | None = None) -> str:
    """Return the unit of the gateway with this absolute data directory. `files`: limit of open files. `ports`: ports of
    its listeners. `launcher`: program that its hints name."""
    program = [*command(), "run", "--data", str(data)]
    places = (Path(sys.executable), Path(sys.executable).resolve(), data)  # Python in a virtual environment is a link
    in_home = any(place.is_relative_to(home) for place in places for home in _HOMES)
    low = any(0 < port < PRIVILEGED_PORTS_END for port in ports)
    bind = "CAP_NET_BIND_SERVICE"
    return _UNIT.format(
        gateway=gateway.replace("%", "%%"),
        user=USER,
        named="" if launcher is None else f"Environment={_quoted(f'{VARIABLE}={launcher}')}\n",
        command=" ".join(_quoted(word).replace("$", "$$") for word in program),
        files=files,
        data=_quoted(str(data)),
        home="read-only" if in_home else "yes",
        capabilities=f"CapabilityBoundingSet={bind}\nAmbientCapabilities={bind}" if low else "CapabilityBoundingSet=",
    )


def steps(data: Path, file: Path) -> Iterator[str]:
    """Yield the commands that install and start the unit."""
    folder, source = word(data), word(file)
    yield f"sudo useradd --system --home-dir {folder} --no-create-home --shell /usr/sbin/nologin {USER}"
    yield f"sudo chown -R {USER}: {folder}"
    yield f"sudo install -m 644 {source} /etc/systemd/system/{UNIT_NAME}"
    yield f"sudo systemctl daemon-reload && sudo systemctl enable --now {UNIT_NAME}"


def closed_folder(program: Path = Path(sys.executable)) -> Path | None:
    """Return the folder that other users cannot enter, so that they cannot run the program; None: they can."""
    for path in (program.absolute(), program.resolve()):
        for folder in reversed(path.parents):
            if not folder.stat().st_mode & 0o001:
                return folder
    return None


def _quoted(word: str) -> str:
    """Quote a word for a unit, where `%` and quotes are special (systemd.service(5), "Command lines")."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"' if any(one in text for one in " \t'\"") else text
