"""Read mosquitto.conf (mosquitto.conf(5), version 2): sections with settings, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from edge.appliance.importing.report import ImportNote, ImportOutcome
from edge.appliance.importing.text_file import ImportFileError, find_file, read_text

INCLUDES_MAX: Final = 100
"""Files of folders named by `include_dir`, in all: a folder that includes itself ends."""


class Setting(NamedTuple):
    """One line of the file."""

    place: str
    """``file:line``."""
    name: str
    value: str

    @property
    def enabled(self) -> bool:
        """Value of a setting that is true or false."""
        return self.value.lower() in {"true", "1"}

    def note(self, outcome: ImportOutcome, words: str = "") -> ImportNote:
        """Return the result for this setting."""
        return ImportNote(self.place, self.name, outcome, words)


class MosquittoSection:
    """Settings of the broker as a whole, of one listener or of one bridge."""

    def __init__(self, head: Setting | None = None) -> None:
        """`head`: the setting that begins it: `listener` or `connection`."""
        self.head = head
        self.settings: list[Setting] = []

    def of(self, *names: str) -> list[Setting]:
        """Return the settings with one of these names."""
        return [each for each in self.settings if each.name in names]

    def last(self, *names: str) -> Setting | None:
        """Return the setting that counts: the last one; None without any."""
        found = self.of(*names)
        return found[-1] if found else None


class MosquittoFile(NamedTuple):
    """Sections of the file, with those of its included files."""

    general: MosquittoSection
    listeners: list[MosquittoSection]
    bridges: list[MosquittoSection]


BRIDGE: Final = frozenset((
    "address", "addresses", "bridge_alpn", "bridge_attempt_unsubscribe", "bridge_bind_address", "bridge_cafile",
    "bridge_capath", "bridge_certfile", "bridge_identity", "bridge_insecure", "bridge_keyfile",
    "bridge_max_packet_size", "bridge_max_topic_alias", "bridge_outgoing_retain", "bridge_protocol_version",
    "bridge_psk", "bridge_reload_type", "bridge_require_ocsp", "bridge_tcp_keepalive",
    "bridge_tcp_user_timeout", "bridge_tls_use_os_certs", "bridge_tls_version", "cleansession", "clientid",
    "idle_timeout", "keepalive_interval", "local_cleansession", "local_clientid", "local_password",
    "local_username", "notification_topic", "notifications", "notifications_local_only", "password",
    "remote_clientid", "remote_password", "remote_username", "restart_timeout", "round_robin", "start_type",
    "threshold", "topic", "try_private", "username",
))  # fmt: skip
"""Settings of the bridge that the last `connection` began."""
LISTENER: Final = frozenset((
    "bind_interface", "cafile", "capath", "certfile", "ciphers", "ciphers_tls1.3", "crlfile", "dhparamfile",
    "disable_client_cert_date_checks", "enable_proxy_protocol", "http_dir", "keyfile",
    "listener_allow_anonymous", "max_connections",
    "max_qos", "max_topic_alias", "max_topic_alias_broker", "mount_point", "protocol",
    "proxy_protocol_v2_require_tls", "psk_hint", "require_certificate", "socket_domain", "tls_engine",
    "tls_engine_kpass_sha1", "tls_keyform", "tls_version", "use_identity_as_username",
    "use_subject_as_username", "use_username_as_clientid", "websockets_headers_size", "websockets_origin",
))  # fmt: skip
"""Settings of the listener that the last `listener` began, or of the default one before it."""
PER_LISTENER: Final = frozenset(
    ("acl_file", "allow_anonymous", "password_file", "psk_file", "allow_zero_length_clientid")
)
"""Settings of a listener if `per_listener_settings` is true."""


def read_mosquitto(path: Path) -> MosquittoFile:
    """Read a configuration with the folders that it includes. Raises ImportFileError."""
    found = MosquittoFile(MosquittoSection(), [], [])
    listener = found.general
    bridge: MosquittoSection | None = None
    per_listener = False
    for setting in _settings(path, [INCLUDES_MAX]):
        if setting.name == "listener":
            listener = MosquittoSection(setting)
            found.listeners.append(listener)
        elif setting.name == "connection":
            bridge = MosquittoSection(setting)
            found.bridges.append(bridge)
        elif setting.name in BRIDGE and bridge is not None:
            bridge.settings.append(setting)
        elif setting.name in LISTENER or (per_listener and setting.name in PER_LISTENER):
            listener.settings.append(setting)
        else:
            per_listener = setting.enabled if setting.name == "per_listener_settings" else per_listener
            found.general.settings.append(setting)
    return found


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file. Raises ImportFileError."""
    return read_text(path).replace("\r\n", "\n").split("\n")


def _settings(path: Path, left: list[int]) -> Iterator[Setting]:
    """Yield the settings of a file, with those of its included ones at their place. `left`: files that may follow."""
    for number, text in enumerate(read_lines(path), 1):
        if not text.strip() or text.startswith("#"):
            continue
        name, _, value = text.strip().partition(" ")
        setting = Setting(f"{path.name}:{number}", name, value.strip())
        if name != "include_dir":
            yield setting
            continue
        folder = find_file(value.strip(), path)
        try:
            files = sorted(each for each in folder.iterdir() if each.suffix == ".conf")
        except OSError as why:
            raise ImportFileError(f"{setting.place}: {folder} cannot be read: {why.strerror}") from None
        for file in files:
            left[0] -= 1
            if left[0] < 0:
                raise ImportFileError(f"{setting.place}: more than {INCLUDES_MAX} included files")
            yield from _settings(file, left)
