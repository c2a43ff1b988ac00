"""Fleet at balena: its devices, their variables and tags, and the release they run."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from images import table
from images.balena.account import BalenaAccount, translate_errors
from images.balena.variables import NAME, TOKEN, check_name, check_value
from images.errors import USAGE, ImageError

TENANT_TAG: Final = "tenant"
"""Tag of a device that names its tenant at the hub."""
DEVICES_MAX: Final = 10_000
"""Devices in one list. Each costs a request to the API; owners split larger fleets anyway."""


@dataclass(frozen=True, slots=True)
class NewDevice:
    """Device to register: name, tenant and variables."""

    name: str
    tenant: str = ""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class RegisteredDevice:
    """Device that is registered, now or before."""

    name: str
    uuid: str


@dataclass(frozen=True, slots=True)
class BalenaDevice:
    """Device as the fleet's owner sees it."""

    uuid: str
    name: str
    online: bool
    os_version: str
    release: str
    tenant: str


class BalenaFleet:
    """One fleet of an account. Each method raises ImageError."""

    def __init__(self, account: BalenaAccount, slug: str) -> None:
        self.slug = slug
        self._account = account
        self._models = account.sdk.models
        self._endpoint = account.endpoint
        with translate_errors(self._endpoint):
            found = self._models.application.get(slug, {"$select": ["id"]})
        self._id: int = found["id"]

    def devices(self, tag: str = TENANT_TAG) -> list[BalenaDevice]:
        """Return the devices, sorted by name."""
        expand = {
            "device_tag": {"$select": "value", "$filter": {"tag_key": tag}},
            "is_running__release": {"$select": "commit"},
        }
        chosen = {"$select": ["uuid", "device_name", "is_online", "os_version"], "$expand": expand}
        with translate_errors(self._endpoint):
            found = self._models.device.get_all_by_application(self._id, chosen)
        return sorted((_parse_device(each) for each in found), key=lambda device: device.name)

    def find_uuid(self, device: str) -> str:
        """Return the UUID of a device, given its name or the first digits of its UUID.

        Raises ImageError unless exactly one device matches.
        """
        known = self.devices()
        exactly = [each.uuid for each in known if device in (each.name, each.uuid)]
        found = exactly or [each.uuid for each in known if each.uuid.startswith(device)]
        if len(found) != 1:
            what = "more than one device has this name" if found else "the fleet has no such device"
            raise ImageError(f"{device}: {what}", hint=f"waypost balena devices {shlex.quote(self.slug)}", code=USAGE)
        return found[0]

    def register(self, devices: Iterable[NewDevice]) -> Iterator[RegisteredDevice]:
        """Register devices one after the other; a device that exists gets its tenant and variables again.

        So the whole list can be repeated after an interruption.
        """
        if self._account.kind != "user":
            raise ImageError(
                f"this token belongs to a {self._account.kind}; registering needs a user's token", code=USAGE
            )
        existing = {device.name: device for device in self.devices()}
        for device in devices:
            yield (
                self._update_device(device, existing[device.name])
                if device.name in existing
                else self._register_device(device)
            )

    def _register_device(self, device: NewDevice) -> RegisteredDevice:
        with translate_errors(self._endpoint):
            made = self._models.device.register(self._id, self._models.device.generate_uuid())
            # The SDK does not check the answer's status.
            if not isinstance(made, dict) or not {"id", "uuid", "api_key"} <= made.keys():
                raise ImageError(f"{self.slug}: {device.name} was not registered: {_shorten(made)}")
        uuid = str(made["uuid"])
        try:
            with translate_errors(self._endpoint):
                self._models.device.rename(uuid, device.name)
        except ImageError as error:
            error.hint = (
                f"{uuid} is registered without its name, {device.name}: name it in balena's dashboard, "
                "then run the command again"
            )
            raise
        self._set_tags_and_variables(uuid, device)
        return RegisteredDevice(device.name, uuid)

    def _update_device(self, device: NewDevice, known: BalenaDevice) -> RegisteredDevice:
        self._set_tags_and_variables(known.uuid, device)
        return RegisteredDevice(device.name, known.uuid)

    def _set_tags_and_variables(self, uuid: str, device: NewDevice) -> None:
        with translate_errors(self._endpoint):
            if device.tenant:
                self._models.device.tags.set(uuid, TENANT_TAG, device.tenant)
            for name, value in device.variables.items():
                self._models.device.env_var.set(uuid, name, value)

    def set_variables(self, variables: Mapping[str, str], device: str | None = None) -> None:
        """Set variables of one device, or of the fleet for devices without a value of their own."""
        uuid = None if device is None else self.find_uuid(device)
        with translate_errors(self._endpoint):
            for name, value in variables.items():
                if uuid is None:
                    self._models.application.env_var.set(self._id, name, value)
                else:
                    self._models.device.env_var.set(uuid, name, value)

    def releases(self) -> list[dict[str, Any]]:
        """Return successful builds, newest first: `commit`, `raw_version`, `created_at`."""
        chosen = {"$select": ["commit", "raw_version", "created_at"], "$filter": {"status": "success"}}
        with translate_errors(self._endpoint):
            found: list[dict[str, Any]] = self._models.release.get_all_by_application(self._id, chosen)
        return found

    def pin(self, release: str | None, device: str | None = None) -> str:
        """Pin the fleet or a device to a release (a version or the first digits of a commit), or to the newest (None).

        Returns the commit; empty for the newest.
        """
        commit = "" if release is None else self._find_commit(release)
        uuid = None if device is None else self.find_uuid(device)
        devices, fleet = self._models.device, self._models.application
        with translate_errors(self._endpoint):
            if uuid is None:
                fleet.pin_to_release(self._id, commit) if commit else fleet.track_latest_release(self._id)
            else:
                devices.pin_to_release(uuid, commit) if commit else devices.track_application_release(uuid)
        return commit

    def _find_commit(self, release: str) -> str:
        known = self.releases()
        exactly = {each["commit"] for each in known if release in (each["commit"], each.get("raw_version"))}
        found = exactly or {each["commit"] for each in known if each["commit"].startswith(release)}
        if len(found) != 1:
            some = ", ".join(f"{each.get('raw_version') or '-'} ({each['commit'][:7]})" for each in known[:5])
            what = "more than one release matches" if found else "the fleet has no such release"
            raise ImageError(f"{release}: {what}", hint=f"the newest are: {some or 'none'}", code=USAGE)
        (commit,) = found
        return str(commit)


def gateway_name(device: NewDevice) -> str:
    """Return the name that the container gives to its gateway (`images/container/gateway/start`)."""
    return device.variables.get(NAME, device.name).lower().replace("_", "-")


def read_device_list(file: Path) -> list[NewDevice]:
    """Read devices from a CSV: columns `name`, optionally `tenant`, and one per variable; an empty cell sets nothing.

    Raises ImageError naming the line.
    """
    rows = table.read_rows(file)
    _, head = next(rows, (1, []))
    columns = [name.strip() for name in head]
    while columns and not columns[-1]:  # spreadsheets add some
        columns.pop()
    if "name" not in columns:
        raise ImageError(f"{file}: no column name", hint="the first line names the columns: name,tenant,…", code=USAGE)
    if len(set(columns)) < len(columns):
        raise ImageError(f"{file}: two columns have the same name", code=USAGE)
    named = [check_name(column) for column in columns if column not in ("name", "tenant")]
    devices = [_read_device(file, line, columns, cells, named) for line, cells in rows]
    if len(devices) > DEVICES_MAX:
        raise ImageError(f"{file}: {len(devices)} devices; one list may have {DEVICES_MAX}", code=USAGE)
    if twice := {name for name, count in Counter(map(gateway_name, devices)).items() if count > 1}:
        raise ImageError(f"{file}: listed twice: {', '.join(sorted(twice))}", code=USAGE)
    _require_own_tokens(file, devices)
    return devices


def _require_own_tokens(file: Path, devices: Iterable[NewDevice]) -> None:
    """Raise ImageError if two devices share a token: the hub would refuse the second gateway."""
    owners: dict[str, str] = {}
    for device in devices:
        token = device.variables.get(TOKEN)
        if token is not None and (first := owners.setdefault(token, device.name)) != device.name:
            words = f"{file}: {device.name} has the token of {first}, and a token enrols one gateway"
            raise ImageError(words, hint="at the hub: waypost token create --count 2", code=USAGE)


def _read_device(
    file: Path, line: int, columns: Sequence[str], cells: Sequence[str], named: Sequence[str]
) -> NewDevice:
    if len(cells) < len(columns) or any(map(str.strip, cells[len(columns) :])):
        raise ImageError(f"{file}, line {line}: the number of fields differs from the number of columns", code=USAGE)
    row = {column: cell.strip() for column, cell in zip(columns, cells, strict=False)}
    if not row["name"]:
        raise ImageError(f"{file}, line {line}: no name", code=USAGE)
    own = {name: row[name] for name in named if row[name]}
    for name, value in own.items():
        check_value(name, value, f"{file}, line {line}: ")
    if NAME not in own:  # the gateway is named like its device
        check_value(NAME, row["name"], f"{file}, line {line}: column name, as ")
    return NewDevice(row["name"], row.get("tenant", ""), own)


def _parse_device(found: Mapping[str, Any]) -> BalenaDevice:
    tags = found.get("device_tag") or [{"value": ""}]
    releases = found.get("is_running__release") or [{"commit": ""}]
    return BalenaDevice(
        uuid=found["uuid"],
        name=found.get("device_name") or "",
        online=bool(found.get("is_online")),
        os_version=found.get("os_version") or "",
        release=releases[0]["commit"],
        tenant=tags[0]["value"],
    )


def _shorten(answer: object) -> str:
    return " ".join(str(answer).split())[:200] or "an empty answer"
