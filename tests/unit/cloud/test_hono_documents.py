"""Documents of Hono become what the registry of a hub takes, and what it refuses has its reason."""

from __future__ import annotations

import base64
import datetime
import json
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from cloud.fleet.hono.device_credentials import (
    MAYBE_ENCRYPTED,
    WITHOUT_CONTENT,
    WantedDeviceCredentials,
    convert_credentials,
)
from cloud.fleet.hono.documents import (
    NO_FIELD,
    GatewayChoice,
    convert_device,
    convert_tenant,
)
from cloud.hub.devices.credentials import read_credentials
from cloud.hub.devices.documents import InvalidDocument
from cloud.hub.devices.limits import CREDENTIALS_MAX, DEVICE_BYTES_MAX, DOCUMENT_DEPTH_MAX, SECRETS_MAX
from cloud.hub.devices.tenants import EMPTY, stored_tenant
from tests.support.hono_registry import BCRYPT, CREDENTIALS, DEVICES, KEY, SECRETS, TENANTS, hashed, password_of

Parts = list[tuple[str, str]]


def raw(document: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(document))


def nested(levels: int) -> object:
    return {"deeper": nested(levels - 1)} if levels else 1


def certificate(subject: str) -> str:
    """Return a certificate that its own subject signed, in Base64."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name.from_rfc4514_string(subject)
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, start, start + datetime.timedelta(days=1))
    return base64.b64encode(made.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)).decode()


class Notes:
    """Parts that a conversion leaves out or refuses."""

    def __init__(self) -> None:
        self.left_out: Parts = []
        self.refused: Parts = []

    def device(self, document: object, choice: GatewayChoice | None = None, name: str = "4711") -> dict[str, Any]:
        made = convert_device(name, raw(document), choice or GatewayChoice(), lambda *each: self.left_out.append(each))
        assert set(made.body) <= set(made.stored) | {"status"}
        return made.stored

    def tenant(self, document: object, owner: str = "", name: str = "DEFAULT_TENANT") -> dict[str, Any]:
        return convert_tenant(name, raw(document), owner, lambda *each: self.left_out.append(each)).stored

    def credentials(
        self, *documents: object, tenant: str = EMPTY, keys_encrypted: bool = False
    ) -> WantedDeviceCredentials | None:
        return convert_credentials(
            [raw(each) for each in documents],
            stored_tenant(tenant),
            lambda *each: self.left_out.append(each),
            lambda *each: self.refused.append(each),
            keys_encrypted=keys_encrypted,
        )


@pytest.fixture
def notes() -> Notes:
    return Notes()


class TestDevices:
    """Registrations."""

    def test_fields_of_hono_are_kept(self, notes: Notes) -> None:
        data = DEVICES[0]["devices"][0]["data"]
        assert notes.device(data) == {
            "enabled": True,
            "defaults": {"content-type": "application/vnd.bumlux", "importance": "high"},
            "ext": {"brand": "ACME"},
        }
        assert notes.left_out == [("comment", NO_FIELD)]
        assert notes.device({"enabled": "false", "via": "gw-1", "status": {"created": "x"}}) == {
            "enabled": False, "via": ["gw-1"],
        }  # fmt: skip

    def test_gateways_are_added_unless_the_file_has_some(self, notes: Notes) -> None:
        choice = GatewayChoice(("plant-1",), "site=berlin")
        both = {"gateways": ["plant-1"], "selector": "site=berlin"}
        assert notes.device({"ext": {"a": 1}}, choice)["ext"] == {"a": 1, "waypost": both}
        own = notes.device({"ext": {"waypost": {"gateways": ["x"]}}}, choice)
        assert own["ext"]["waypost"] == {"gateways": ["x"], "selector": "site=berlin"}
        with pytest.raises(InvalidDocument):
            notes.device({"ext": {"waypost": 3}}, choice)
        with pytest.raises(InvalidDocument):
            GatewayChoice(("",)).check()
        choice.check()

    def test_extended_json_of_mongodb_is_plain(self, notes: Notes) -> None:
        given = {
            "ext": {
                "n": {"$numberInt": "5"},
                "l": [{"$numberLong": "6"}, {"$numberDouble": "1.5"}],
                "at": {"$date": "2020-09-16T12:34:44Z"},
                "odd": {"$numberInt": "x"},
                "own": {"$other": 1},
            }
        }
        assert notes.device(given)["ext"] == {
            "n": 5, "l": [6, 1.5], "at": "2020-09-16T12:34:44Z", "odd": {"$numberInt": "x"}, "own": {"$other": 1},
        }  # fmt: skip

    @pytest.mark.parametrize(
        "document",
        [
            3,
            [],
            {"enabled": 3},
            {"via": ["a"], "memberOf": ["b"]},
            {"ext": {"big": "x" * DEVICE_BYTES_MAX}},
            {"ext": {"nul": "\0"}},
            {"ext": {"deep": nested(DOCUMENT_DEPTH_MAX)}},
        ],
    )
    def test_what_the_registry_refuses_is_an_error(self, notes: Notes, document: object) -> None:
        with pytest.raises(InvalidDocument):
            notes.device(document)

    def test_a_name_that_the_registry_refuses_is_an_error(self, notes: Notes) -> None:
        with pytest.raises(InvalidDocument):
            notes.device({}, name="has space")


class TestTenants:
    """Tenants of devices."""

    def test_fields_of_hono_are_kept(self, notes: Notes) -> None:
        made = notes.tenant(TENANTS[0])
        assert made["enabled"] is True
        assert made["adapters"][0]["type"] == "hono-mqtt"
        assert notes.left_out == [("custom", NO_FIELD)]

    def test_an_owner_is_for_names_that_are_no_tenant_of_the_hub(self, notes: Notes) -> None:
        assert notes.tenant({}, "acme")["ext"] == {"waypost": {"tenant": "acme"}}
        assert "ext" not in notes.tenant({}, "acme", name="acme")

    @pytest.mark.parametrize("document", [{"trusted-ca": [{}]}, {"trusted-ca": [3]}, {"adapters": []}, {"enabled": 3}])
    def test_what_the_registry_refuses_is_an_error(self, notes: Notes, document: object) -> None:
        with pytest.raises(InvalidDocument):
            notes.tenant(document)


class TestCredentials:
    """Credentials of a device."""

    def test_each_type(self, notes: Notes) -> None:
        made = notes.credentials(*CREDENTIALS[0]["credentials"][:3])
        assert made is not None
        assert [(each["type"], each["auth-id"]) for each in made.body] == [
            ("hashed-password", "sensor1"),
            ("psk", "little-sensor"),
            ("x509-cert", "CN=Device 4711,OU=Hono,O=Eclipse IoT"),
        ]
        (name, why), *more = notes.refused
        assert (name, more) == ("hashed-password sensor1 secret 2", [])
        assert "bcrypt" in why
        assert len(made.body[0]["secrets"]) == 1
        assert "id" not in made.body[0]["secrets"][0], "it is the id of the other registry"
        assert made.stored[0]["secrets"][0]["not-before"] == "2017-05-01T14:00:00+01:00"
        read_credentials(msgspec.json.encode(made.body))

    def test_a_hash_function_is_sha256_by_default(self, notes: Notes) -> None:
        secret = hashed(function="sha256")
        del secret["hash-function"]
        made = notes.credentials(password_of("d", secret))
        assert made is not None
        assert made.body[0]["secrets"][0]["hash-function"] == "sha-256"

    def test_a_password_in_plain_text_is_taken(self, notes: Notes) -> None:
        made = notes.credentials(password_of("d", {"pwd-plain": "x"}))
        assert made is not None
        assert made.body[0]["secrets"] == [{"pwd-plain": "x"}]
        assert made.stored[0]["secrets"] == [{"enabled": True}]

    @pytest.mark.parametrize(
        ("document", "why"),
        [
            (password_of("d", {"hash-function": "bcrypt", "pwd-hash": BCRYPT}), "bcrypt"),
            (password_of("d", {"hash-function": "sha-1", "pwd-hash": "AAAA"}), "sha-256"),
            (password_of("d", {"id": "x", "enabled": True}), WITHOUT_CONTENT),
            (password_of("d", auth_id="a b"), "auth-id"),
            ({"type": "psk", "auth-id": "a", "secrets": [{"key": "not Base64!"}]}, "Base64"),
            ({"type": "psk", "auth-id": "a", "secrets": [{}]}, WITHOUT_CONTENT),
            ({"type": "psk", "auth-id": "a", "secrets": []}, "secrets"),
            ({"type": "psk", "auth-id": "a"}, "secrets"),
            ({"type": "psk", "auth-id": "a", "secrets": [3]}, "object"),
            ({"type": "psk", "secrets": [{"key": KEY}]}, "auth-id"),
            ({"type": "x509-cert", "auth-id": "CN=a", "secrets": [{}, {}]}, "one secret"),
            ({"type": "x509-cert", "auth-id": "no subject", "secrets": [{}]}, "auth-id"),
            ({"type": "face", "auth-id": "a", "secrets": [{}]}, "type"),
            ({"auth-id": "a"}, "type"),
            (3, "object"),
        ],
    )
    def test_what_the_registry_refuses_has_a_reason_and_no_secret(self, notes: Notes, document: Any, why: str) -> None:
        assert notes.credentials(document) is None
        words = " ".join(f"{name} {each}" for name, each in notes.refused)
        assert why in words
        assert not any(secret in words for secret in (*SECRETS, "not Base64!"))

    def test_a_certificate_needs_no_secrets(self, notes: Notes) -> None:
        made = notes.credentials({"type": "x509-cert", "auth-id": "CN=a"})
        assert made is not None
        assert made.stored == [
            {"type": "x509-cert", "auth-id": "CN=a", "enabled": True, "secrets": [{"enabled": True}]}
        ]

    def test_too_many_secrets_and_credentials(self, notes: Notes) -> None:
        assert notes.credentials(password_of("d", *[hashed()] * (SECRETS_MAX + 1))) is None
        with pytest.raises(InvalidDocument):
            notes.credentials(*[password_of("d", auth_id=f"a{i}") for i in range(CREDENTIALS_MAX + 1)])

    def test_the_last_of_two_is_taken(self, notes: Notes) -> None:
        salted = password_of("d", hashed(salt=b"other"))
        made = notes.credentials(password_of("d"), password_of("d"), salted)
        assert made is not None
        assert base64.b64decode(made.body[0]["secrets"][0]["salt"]) == b"other"
        assert [name for name, _ in notes.left_out] == ["hashed-password d"]

    def test_long_identifiers_stay_apart(self, notes: Notes) -> None:
        names = ["a" * 90 + each for each in "12"]
        made = notes.credentials(*[password_of("d", auth_id=each) for each in names])
        assert made is not None
        assert [each["auth-id"] for each in made.body] == names
        assert notes.left_out == []

    def test_certificates_without_an_identifier_stay_apart(self, notes: Notes) -> None:
        made = notes.credentials(*[{"type": "x509-cert", "cert": certificate(each)} for each in ("CN=a", "CN=b")])
        assert made is not None
        assert [each["auth-id"] for each in made.stored] == ["CN=a", "CN=b"]
        assert notes.left_out == []

    def test_a_template_of_the_tenant_makes_the_identifier(self, notes: Notes) -> None:
        """The description is that of the registry, so that a second run finds the same."""
        authority = {"subject-dn": "CN=a", "auth-id-template": "device-{{subject-cn}}"}
        made = notes.credentials(
            {"type": "x509-cert", "cert": certificate("CN=a")}, tenant=json.dumps({"trusted-ca": [authority]})
        )
        assert made is not None
        assert [each["auth-id"] for each in made.stored] == ["device-a"]

    def test_a_limit_of_the_tenant_is_a_reason(self, notes: Notes) -> None:
        tenant = json.dumps({"registration-limits": {"max-credentials-per-device": 0}})
        with pytest.raises(InvalidDocument):
            notes.credentials(password_of("d"), tenant=tenant)

    def test_keys_that_may_be_encrypted_are_refused(self, notes: Notes) -> None:
        made = notes.credentials(*CREDENTIALS[0]["credentials"][:3], keys_encrypted=True)
        assert made is not None
        assert [each["type"] for each in made.body] == ["hashed-password", "x509-cert"]
        assert ("psk little-sensor", MAYBE_ENCRYPTED) in notes.refused

    def test_unknown_fields_are_told(self, notes: Notes) -> None:
        given = {**password_of("d", {**hashed(), "hint": "x"}), "generated": True}
        assert notes.credentials(given) is not None
        assert notes.left_out == [("hashed-password d generated", NO_FIELD), ("hashed-password d hint", NO_FIELD)]
