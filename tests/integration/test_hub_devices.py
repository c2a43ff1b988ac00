"""Devices of a hub over HTTP, as clients of Eclipse Hono's device registry use it."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from bridge.sasl.scram import ScramKeys
from cloud.fleet.devices import _moved, device
from cloud.hub.devices.limits import (
    CREDENTIALS_BYTES_MAX,
    CREDENTIALS_MAX,
    DEVICE_BYTES_MAX,
    DOCUMENT_DEPTH_MAX,
    LINKS_MAX,
    PAGE_SIZE_MAX,
    SEARCH_TERMS_MAX,
    SECRETS_MAX,
    TENANT_BYTES_MAX,
)
from cloud.hub.devices.subjects import normalize_subject
from cloud.hub.registry.devices import RegisteredDevices
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from edge.appliance.where import give_defaults
from edge.broker.security.credentials import CredentialSecret, CredentialUser, verify
from edge.remote.client import ConsoleClient, Login
from tests.support.command import item_in, items_in
from tests.support.enrolled import EnrolledFleet
from tests.support.http_client import Answer, ask
from tests.support.operator import HubOperator


class RegistryClient:
    """Client of the registry: a user of the hub, or the local operator."""

    def __init__(self, hub: HubOperator, user: str = "", password: str = "") -> None:
        self.hub = hub
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.authorization = f"Basic {token}" if user else ""

    def send(self, method: str, path: str, body: Any = None, **fields: str) -> Answer:
        if not self.authorization:
            return self.hub.ask(method, f"/v1/{path}", body, **fields)
        more = {name.replace("_", "-"): value for name, value in fields.items()}
        headers = {"Authorization": self.authorization, "Content-Type": "application/json", **more}
        content = None if body is None else json.dumps(body).encode()
        return ask(self.hub.hub, method, f"/v1/{path}", content, headers, tls=self.hub.context)

    def done(self, method: str, path: str, body: Any = None, **fields: str) -> Answer:
        answer = self.send(method, path, body, **fields)
        assert answer.status < 300, answer
        return answer

    def ids(self, path: str) -> list[str]:
        return [each["id"] for each in self.done("GET", path).document["result"]]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubOperator]:
    with EnrolledFleet(tmp_path_factory.mktemp("devices")) as fleet:
        yield HubOperator(fleet.hub)


@pytest.fixture(scope="module")
def admin(hub: HubOperator) -> RegistryClient:
    return RegistryClient(hub)


def person(hub: HubOperator, name: str, *allow: str) -> RegistryClient:
    made = hub.send("POST", "users", {"name": name, "allow": list(allow)})
    assert made.status == 201, made
    return RegistryClient(hub, name, made.document["password"])


@pytest.fixture(scope="module")
def manager(hub: HubOperator) -> RegistryClient:
    return person(hub, "boss@acme", "manage:#")


@pytest.fixture(scope="module")
def viewer(hub: HubOperator) -> RegistryClient:
    return person(hub, "eye@acme", "view:#")


@pytest.fixture(scope="module")
def tenant(admin: RegistryClient) -> str:
    """Return a tenant with a name that only Hono allows."""
    made = admin.done("POST", "tenants/DEFAULT_TENANT", {"enabled": True})
    assert (made.document, made.headers["location"]) == ({"id": "DEFAULT_TENANT"}, "/v1/tenants/DEFAULT_TENANT")
    return "DEFAULT_TENANT"


def json_query(**given: Any) -> str:
    return "&".join(f"{name}={quote(json.dumps(value))}" for name, value in given.items())


class TestDevices:
    """Registrations."""

    def test_a_device_is_added_read_replaced_and_removed(self, admin: RegistryClient, tenant: str) -> None:
        place = f"devices/{tenant}/4711"
        made = admin.done("POST", place, {"ext": {"brand": "ACME"}, "via": "gw-1", "status": {"created": "then"}})
        assert (made.status, made.document, made.headers["location"]) == (201, {"id": "4711"}, f"/v1/{place}")
        found = admin.done("GET", place)
        assert found.headers["etag"] == made.headers["etag"]
        shown = found.document
        status = shown.pop("status")
        assert shown == {"enabled": True, "ext": {"brand": "ACME"}, "via": ["gw-1"]}
        assert set(status) == {"created", "last-user"}, "no update yet"
        assert datetime.datetime.fromisoformat(status["created"]).tzinfo is not None
        changed = admin.done("PUT", place, {"enabled": False}, If_Match=made.headers["etag"])
        assert changed.status == 204
        assert changed.headers["etag"] not in (made.headers["etag"], "")
        after = admin.done("GET", place).document
        assert after["enabled"] is False
        assert datetime.datetime.fromisoformat(after["status"]["updated"]).tzinfo is not None
        stale = admin.send("PUT", place, {}, If_Match=made.headers["etag"])
        assert (stale.status, stale.headers["etag"]) == (412, changed.headers["etag"])
        version = changed.headers["etag"].strip('"')
        assert admin.send("DELETE", place, If_Match="0" + version).status == 412
        assert admin.done("DELETE", place, If_Match=version).status == 204, "Hono's clients send it without quotes"
        gone = admin.send("GET", place)
        assert gone.status == 404
        assert gone.document["error"]

    def test_an_id_is_generated_and_a_body_is_not_needed(self, admin: RegistryClient, tenant: str) -> None:
        first, again = (admin.done("POST", f"devices/{tenant}", Idempotency_Key="one") for _ in range(2))
        assert first.document == again.document, "a repeated request adds no second device"
        assert admin.done("GET", f"devices/{tenant}/{first.document['id']}").document["enabled"] is True
        assert admin.send("POST", f"devices/{tenant}/{first.document['id']}").status == 409

    REFUSED: ClassVar[list[Any]] = [
        b"{",
        b"[]",
        b'"x"',
        {"enabled": "yes"},
        {"unknown": 1},
        {"via": ["gw"], "memberOf": ["group"]},
        {"viaGroups": ["gw"], "memberOf": ["group"]},
        {"via": ["a/b"]},
        {"via": ["gw"] * (LINKS_MAX + 1)},
        {"ext": {"a": "\0"}},
        {"ext": {"\0": 1}},
        {"ext": {"waypost": {"unknown": 1}}},
        {"ext": {"waypost": {"gateways": [""]}}},
        {"ext": {"waypost": {"selector": "=,"}}},
        {"ext": {"waypost": {"labels": {"-": "x"}}}},
        {"command-endpoint": {}},
        b'{"ext": {"a": ' + b"[" * (DOCUMENT_DEPTH_MAX - 1) + b"]" * (DOCUMENT_DEPTH_MAX - 1) + b"}}",
        b'{"ext": {"a": ' + b"[" * 7_000 + b"]" * 7_000 + b"}}",
        b'{"ext": {"a": "\\ud800"}}',
        b'{"ext": {"a": 1e999}}',
    ]

    @pytest.mark.parametrize("body", REFUSED, ids=range(len(REFUSED)))
    def test_an_invalid_registration_is_refused(self, admin: RegistryClient, tenant: str, body: Any) -> None:
        answer = admin.send("POST", f"devices/{tenant}/refused", body)
        assert answer.status == 400, answer
        assert answer.document["code"]
        assert admin.send("GET", f"devices/{tenant}/refused").status == 404

    def test_limits_of_a_registration(self, admin: RegistryClient, tenant: str) -> None:
        assert admin.send("POST", f"devices/{tenant}/x", {"ext": {"a": "x" * DEVICE_BYTES_MAX}}).status == 413
        assert admin.send("POST", f"devices/{tenant}/{'x' * 256}").status == 400
        assert admin.send("POST", f"devices/{tenant}/a%20b").status == 400
        deepest = b'{"ext": {"a": ' + b"[" * (DOCUMENT_DEPTH_MAX - 2) + b"]" * (DOCUMENT_DEPTH_MAX - 2) + b"}}"
        assert admin.done("POST", f"devices/{tenant}/{'x' * 255}", deepest).status == 201
        assert admin.send("POST", "devices/UNKNOWN/x").status == 404

    def test_bodies_are_limited(self, admin: RegistryClient, tenant: str) -> None:
        large = {"ext": {"a": "x" * TENANT_BYTES_MAX}}
        assert admin.send("PUT", f"tenants/{tenant}", large).status == 413
        assert admin.send("PUT", f"credentials/{tenant}/any", ["x" * CREDENTIALS_BYTES_MAX]).status == 413

    def test_a_tenant_of_devices_has_a_limit_of_its_own(self, admin: RegistryClient) -> None:
        admin.done("POST", "tenants/SMALL", {"registration-limits": {"max-devices": 1}})
        admin.done("POST", "devices/SMALL/one")
        assert admin.send("POST", "devices/SMALL/two").status == 403
        admin.done("DELETE", "devices/SMALL/one")
        admin.done("POST", "devices/SMALL/two")


@pytest.fixture(scope="module")
def site(admin: RegistryClient) -> str:
    admin.done("POST", "tenants/SEARCHED")
    for number in range(5):
        ext = {"rank": 5 - number, "site": "Berlin" if number % 2 else "Bonn"}
        via = ["d0"] if number == 4 else []
        admin.done("POST", f"devices/SEARCHED/d{number}", {"enabled": number != 3, "ext": ext, "via": via})
    return "devices/SEARCHED"


class TestSearch:
    """Searches."""

    def test_filters_and_order(self, admin: RegistryClient, site: str) -> None:
        assert admin.ids(f"{site}?{json_query(filterJson={'field': '/ext/site', 'value': 'Ber*'})}") == ["d1", "d3"]
        both = json_query(filterJson={"field": "/ext/site", "value": "B?r*"})
        on = json_query(filterJson={"field": "/enabled", "op": "eq", "value": True})
        assert admin.ids(f"{site}?{both}&{on}") == ["d1"]
        down = json_query(sortJson={"field": "/ext/rank", "direction": "desc"})
        assert admin.ids(f"{site}?{down}&pageSize=2") == ["d0", "d1"]
        assert admin.ids(f"{site}?{down}&pageSize=2&pageOffset=4") == ["d4"]
        assert admin.ids(f"{site}?isGateway=true") == ["d0"]
        nothing = admin.send("GET", f"{site}?{json_query(filterJson={'field': '/ext/none', 'value': 1})}")
        assert nothing.status == 404, "as Hono answers"

    def test_pages_lead_to_the_next_one(self, admin: RegistryClient, site: str) -> None:
        found, place = list[str](), f"{site}?pageSize=2"
        while place:
            page = admin.done("GET", place)
            assert page.document["total"] == 5
            found += [each["id"] for each in page.document["result"]]
            link = page.headers.get("link", "")
            place = link.partition(">")[0].removeprefix("</v1/")
        assert found == [f"d{number}" for number in range(5)]
        assert admin.done("GET", f"{site}?pageSize=0").document == {"total": 5, "result": []}

    @pytest.mark.parametrize(
        "query",
        [
            "pageSize=-1",
            f"pageSize={PAGE_SIZE_MAX + 1}",
            "pageOffset=x",
            "pageOffset=99999999999",
            "filterJson=x",
            "isGateway=maybe",
            json_query(filterJson={"field": "ext", "value": 1}),
            json_query(filterJson={"field": "/ext/a", "value": None}),
            json_query(filterJson={"field": "/ext/a", "op": "gt", "value": 1}),
            json_query(filterJson={"field": "/status/created", "value": "2026*"}),
            json_query(filterJson={"field": '/ext/a"', "value": 1}),
            json_query(filterJson={"field": "/ext/a", "value": "x" * 1_024}),
            json_query(filterJson={"field": "/ext/a", "value": "\0"}),
            json_query(filterJson={"field": "/ext/a", "value": 1 << 63}),
            json_query(sortJson={"field": "/id", "direction": "up"}),
            "&".join([json_query(sortJson={"field": "/id"})] * (SEARCH_TERMS_MAX + 1)),
            "after=d1&" + json_query(sortJson={"field": "/id"}),
        ],
    )
    def test_an_invalid_search_is_refused(self, admin: RegistryClient, site: str, query: str) -> None:
        assert admin.send("GET", f"{site}?{query}").status == 400


def certificate(common_name: str, issuer: str = "") -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    parts = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "ACME"),
        x509.NameAttribute(NameOID.COMMON_NAME, common_name),
    ]
    name = x509.Name(parts)
    by = x509.Name.from_rfc4514_string(issuer) if issuer else name
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    return base64.b64encode(made.public_bytes(Encoding.DER)).decode()


def password(auth_id: str, *secrets: Any) -> dict[str, Any]:
    return {"type": "hashed-password", "auth-id": auth_id, "secrets": list(secrets)}


class TestCredentials:
    """Credentials of devices."""

    @pytest.fixture
    def device(self, admin: RegistryClient, tenant: str) -> Iterator[str]:
        admin.done("POST", f"devices/{tenant}/pump")
        yield f"credentials/{tenant}/pump"
        admin.done("DELETE", f"devices/{tenant}/pump")

    @staticmethod
    def stored(admin: RegistryClient, tenant: str) -> list[dict[str, Any]]:
        """Return the credentials as the registry has them."""
        database = open_registry(sqlite_url(admin.hub.hub.data / "registry.db")).database
        try:
            return [json.loads(each.document) for each in RegisteredDevices(database).credentials(tenant, "pump").rows]
        finally:
            database.close()

    def test_a_password_is_stored_as_gateways_verify_it(self, admin: RegistryClient, tenant: str, device: str) -> None:
        empty = admin.done("GET", device)
        assert empty.document == []
        first = admin.done("PUT", device, [password("p", {"pwd-plain": "one"})], If_Match=empty.headers["etag"])
        found = admin.done("GET", device)
        assert found.headers["etag"] == first.headers["etag"] != empty.headers["etag"]
        [shown] = found.document
        [secret] = shown["secrets"]
        assert set(secret) == {"id", "enabled"}, "no hash leaves the registry"
        kept = {"id": secret["id"], "not-after": "2099-01-01T00:00:00Z"}
        admin.done("PUT", device, [password("p", kept, {"pwd-plain": "two", "comment": "new"})])
        [row] = self.stored(admin, tenant)
        assert "one" not in json.dumps(row)
        salt = base64.b64decode(row["scram_salt"])
        secrets = [
            CredentialSecret(
                each["id"],
                each["argon2"],
                ScramKeys(base64.b64decode(each["stored_key"]), base64.b64decode(each["server_key"])),
            )
            for each in row["secrets"]
        ]
        user = CredentialUser(name="p", salt=salt, iterations=row["scram_iterations"], secrets=tuple(secrets))
        for text, number in ((b"one", 0), (b"two", 1)):
            assert verify(user, text, 1e9) == secrets[number]
        assert verify(user, b"three", 1e9) is None
        assert row["secrets"][0]["not_after"].startswith("2099")
        assert admin.send("PUT", device, [], If_Match=first.headers["etag"]).status == 412

    def test_hashes_of_hono_are_taken_over(self, admin: RegistryClient, tenant: str, device: str) -> None:
        salt = b"salt"
        digest = base64.b64encode(hashlib.sha512(salt + b"secret").digest()).decode()
        hashed = {"hash-function": "sha-512", "pwd-hash": digest, "salt": base64.b64encode(salt).decode()}
        admin.done("PUT", device, [password("p", hashed)])
        [row] = self.stored(admin, tenant)
        assert [each["pwd_hash"] for each in row["secrets"]] == [digest]

    def test_keys_and_certificates(self, admin: RegistryClient, tenant: str, device: str) -> None:
        wanted = [
            {"type": "psk", "auth-id": "p", "secrets": [{"key": base64.b64encode(b"key").decode()}]},
            {"type": "x509-cert", "cert": certificate("pump")},
            {"type": "rpk", "auth-id": "p", "secrets": [{"cert": certificate("pump")}]},
        ]
        admin.done("PUT", device, wanted)
        found = {each["type"]: each for each in admin.done("GET", device).document}
        assert found["x509-cert"]["auth-id"] == "CN=pump,O=ACME"
        assert found["x509-cert"]["secrets"][0]["not-after"] == "2027-01-01T00:00:00Z"
        assert "key" not in found["psk"]["secrets"][0]
        admin.done("PUT", device, list(found.values()))
        rows = {each["type"]: each for each in self.stored(admin, tenant)}
        assert rows["psk"]["secrets"][0]["key"] == base64.b64encode(b"key").decode(), "kept by its id"
        assert rows["rpk"]["secrets"][0]["algorithm"] == "EC"

    def test_a_template_of_the_authority_makes_the_identifier(self, admin: RegistryClient) -> None:
        authority = {"cert": certificate("root"), "auth-id-template": "{{subject-cn}}-of-{{subject-o}}"}
        admin.done("POST", "tenants/TEMPLATED", {"trusted-ca": [authority]})
        admin.done("POST", "devices/TEMPLATED/pump")
        body = [{"type": "x509-cert", "cert": certificate("pump", "CN=root,O=ACME")}]
        admin.done("PUT", "credentials/TEMPLATED/pump", body)
        [found] = admin.done("GET", "credentials/TEMPLATED/pump").document
        assert found["auth-id"] == "pump-of-ACME"
        admin.done("PUT", "credentials/TEMPLATED/pump", [found])
        assert admin.done("GET", "credentials/TEMPLATED/pump").document == [found]

    REFUSED: ClassVar[list[Any]] = [
        {},
        [{"type": "magic", "auth-id": "p", "secrets": [{}]}],
        [password("p")],
        [password("p", {})],
        [password("p", {"id": "unknown"})],
        [password("a b", {"pwd-plain": "x"})],
        [password("p", {"pwd-plain": "x" * 1_025})],
        [password("p", {"pwd-hash": "AAAA", "hash-function": "sha-256"})],
        [password("p", {"pwd-hash": "AAAA", "hash-function": "md5"})],
        [password("p", {"pwd-hash": "$2a$10$" + "a" * 53, "hash-function": "bcrypt"})],
        [password("p", *[{"pwd-plain": "x"}] * (SECRETS_MAX + 1))],
        [password("p", {"pwd-plain": "x", "not-after": "2026-01-01T00:00:00"})],
        [password("p", {"pwd-plain": "x", "not-before": "2027-01-01T00:00:00Z", "not-after": "2026-01-01T00:00:00Z"})],
        [password("p", {"pwd-plain": "x"}), password("p", {"pwd-plain": "y"})],
        [password(f"p{number}", {"pwd-plain": "x"}) for number in range(CREDENTIALS_MAX + 1)],
        [{"type": "psk", "auth-id": "p", "secrets": [{}]}],
        [{"type": "psk", "auth-id": "p", "secrets": [{"key": "?"}]}],
        [{"type": "psk", "auth-id": "p", "secrets": [{"key": base64.b64encode(bytes(65)).decode()}]}],
        [{"type": "x509-cert"}],
        [{"type": "x509-cert", "cert": "AAAA"}],
        [{"type": "x509-cert", "auth-id": "pump", "secrets": [{}]}],
        [{"type": "x509-cert", "auth-id": "CN=pump", "secrets": [{}, {}]}],
        [{"type": "rpk", "auth-id": "p", "secrets": [{"key": "AAAA"}]}],
    ]

    def test_invalid_credentials_are_refused(self, admin: RegistryClient, device: str) -> None:
        before = admin.done("PUT", device, [password("p", {"pwd-plain": "good"})]).headers["etag"]
        for body in self.REFUSED:
            answer = admin.send("PUT", device, body)
            assert answer.status == 400, body
            assert "good" not in answer.body.decode()
        assert admin.done("GET", device).headers["etag"] == before

    def test_an_identifier_belongs_to_one_device(self, admin: RegistryClient, tenant: str, device: str) -> None:
        admin.done("POST", f"devices/{tenant}/fan")
        admin.done("PUT", device, [password("p", {"pwd-plain": "x"})])
        assert admin.send("PUT", f"credentials/{tenant}/fan", [password("p", {"pwd-plain": "x"})]).status == 409
        assert admin.send("PUT", f"credentials/{tenant}/none", []).status == 404
        admin.done("DELETE", f"devices/{tenant}/fan")

    def test_a_tenant_limits_credentials(self, admin: RegistryClient) -> None:
        admin.done("POST", "tenants/FEW", {"registration-limits": {"max-credentials-per-device": 0}})
        admin.done("POST", "devices/FEW/pump")
        assert admin.send("PUT", "credentials/FEW/pump", [password("p", {"pwd-plain": "x"})]).status == 403


class TestTenants:
    """Tenants of devices, and the rights of users."""

    def test_a_tenant_of_the_hub_needs_no_document(self, manager: RegistryClient, viewer: RegistryClient) -> None:
        found = manager.done("GET", "tenants/acme")
        assert found.document == {"enabled": True}
        manager.done("PUT", "tenants/acme", {"ext": {"a": 1}}, If_Match=found.headers["etag"])
        assert manager.send("PUT", "tenants/acme", {}, If_Match=found.headers["etag"]).status == 412
        assert viewer.done("GET", "tenants/acme").document["ext"] == {"a": 1}
        assert viewer.ids("tenants") == ["acme"], "others are not shown"

    def test_a_user_sees_and_changes_its_own_tenant_only(
        self, manager: RegistryClient, viewer: RegistryClient, admin: RegistryClient, tenant: str
    ) -> None:
        manager.done("POST", "devices/acme/pump")
        assert viewer.done("GET", "devices/acme/pump").document["enabled"] is True
        for method, path in (
            ("POST", "devices/acme/fan"),
            ("PUT", "devices/acme/pump"),
            ("DELETE", "devices/acme/pump"),
            ("DELETE", "devices/acme"),
            ("PUT", "credentials/acme/pump"),
            ("PUT", "tenants/acme"),
            ("DELETE", "tenants/acme"),
        ):
            assert viewer.send(method, path, {}).status == 403, path
        for path in (f"devices/{tenant}", f"devices/{tenant}/4711", f"credentials/{tenant}/4711", f"tenants/{tenant}"):
            assert manager.send("GET", path).status == 404, path
        assert manager.send("POST", "tenants/OTHER").status == 403
        assert manager.send("POST", "tenants/globex").status == 403
        assert RegistryClient(admin.hub, "boss@acme", "wrong").send("GET", "devices/acme").status == 401
        assert admin.ids("devices/acme") == ["pump"]

    def test_a_tenant_can_belong_to_a_tenant_of_the_hub(self, admin: RegistryClient, manager: RegistryClient) -> None:
        admin.done("POST", "tenants/ACME_2", {"ext": {"waypost": {"tenant": "acme"}}})
        manager.done("POST", "devices/ACME_2/pump")
        assert manager.ids("tenants") == ["ACME_2", "acme"]
        assert admin.send("PUT", "tenants/ACME_2", {"ext": {"waypost": {"tenant": "globex"}}}).status == 409
        assert admin.send("POST", "tenants/globex", {"ext": {"waypost": {"tenant": "acme"}}}).status == 400
        assert admin.send("POST", "tenants/ACME_2").status == 409

    def test_a_removed_tenant_has_no_devices(self, admin: RegistryClient) -> None:
        made = admin.done("POST", "tenants/GONE")
        for number in range(3):
            admin.done("POST", f"devices/GONE/d{number}")
        assert admin.send("DELETE", "tenants/GONE", If_Match="1").status == 412
        admin.done("DELETE", "tenants/GONE", If_Match=made.headers["etag"])
        assert admin.send("GET", "tenants/GONE").status == 404
        again = admin.done("POST", "tenants/GONE")
        assert again.headers["etag"] != made.headers["etag"]
        assert admin.send("GET", "devices/GONE/d0").status == 404
        admin.done("POST", "devices/GONE/d0")
        admin.done("DELETE", "devices/GONE")
        assert admin.send("GET", "devices/GONE").status == 404

    def test_authorities(self, admin: RegistryClient) -> None:
        root = certificate("shared")
        admin.done("POST", "tenants/CA_1", {"trusted-ca": {"cert": root, "auto-provisioning-enabled": True}})
        [shown] = admin.done("GET", "tenants/CA_1").document["trusted-ca"]
        assert (shown["subject-dn"], shown["algorithm"], shown["id"]) == ("CN=shared,O=ACME", "EC", "ca-1")
        assert shown["not-after"] == "2027-01-01T00:00:00Z"
        assert admin.send("POST", "tenants/CA_2", {"trusted-ca": [{"cert": root}]}).status == 409
        assert admin.send("GET", "tenants/CA_2").status == 404, "nothing was added"
        described = {name: shown[name] for name in ("public-key", "subject-dn", "not-before", "not-after")}
        group = {"trust-anchor-group": "one", "trusted-ca": [{**described, "subject-dn": "CN=of-a-group"}]}
        for name in ("CA_3", "CA_4"):
            admin.done("POST", f"tenants/{name}", group)
        refused: list[dict[str, Any]] = [
            {"trusted-ca": [{"subject-dn": "CN=x"}]},
            {"trusted-ca": [{"cert": "x"}]},
            {"trusted-ca": [{"cert": root, "auth-id-template": "{{subject-x}}"}]},
            {"trusted-ca": [{"cert": root, "id": "a"}, {"cert": certificate("b"), "id": "a"}]},
            {"adapters": []},
            {"adapters": [{"type": "a"}, {"type": "a"}]},
            {"alias": "UPPER"},
        ]
        for wrong in refused:
            assert admin.send("PUT", "tenants/CA_1", wrong).status == 400, wrong


class TestHonoClient:
    """Requests as the client of Hono's integration tests sends them."""

    def test_credentials_of_every_type(self, admin: RegistryClient) -> None:
        admin.done("POST", "tenants/HONO", None)
        admin.done("POST", "devices/HONO/device-1", None)
        place = "credentials/HONO/device-1"
        version = admin.done("GET", place).headers["etag"]
        wanted = [
            {
                "type": "hashed-password",
                "auth-id": "sensor.1",
                "enabled": True,
                "ext": {"client-id": "MQTT-client-2384236854"},
                "secrets": [
                    {"enabled": True, "pwd-plain": "thePassword", "not-after": "2099-11-29T17:00:00.123456789Z"}
                ],
            },
            {
                "type": "x509-cert",
                "auth-id": "emailAddress=foo@bar.com, CN=foo, O=bar",
                "comment": "non-standard attribute type",
                "secrets": [{}],
            },
            {"type": "psk", "auth-id": "psk-id", "secrets": [{"key": "c2VjcmV0"}]},
        ]
        changed = admin.done("PUT", place, wanted, If_Match=version)
        found = {each["type"]: each for each in admin.done("GET", place).document}
        assert found["hashed-password"]["ext"] == {"client-id": "MQTT-client-2384236854"}
        assert found["x509-cert"]["comment"] == "non-standard attribute type"
        assert found["x509-cert"]["auth-id"] == "1.2.840.113549.1.9.1=foo@bar.com,CN=foo,O=bar"
        assert all(one["id"] and one["enabled"] for each in found.values() for one in each["secrets"])
        secret = {"id": found["hashed-password"]["secrets"][0]["id"], "pwd-plain": "other", "comment": "updated"}
        future = {"pwd-plain": "future", "not-before": "2099-11-29T17:00:00Z"}
        body = [{"type": "hashed-password", "auth-id": "sensor.1", "secrets": [secret, future]}]
        assert admin.send("PUT", place, body, If_Match=changed.headers["etag"] + "_other").status == 412
        admin.done("PUT", place, body, If_Match=changed.headers["etag"])
        [after] = admin.done("GET", place).document
        assert [each.get("comment") for each in after["secrets"]] == ["updated", None]
        assert after["secrets"][0]["id"] == secret["id"]

    def test_another_content_type_is_refused(self, admin: RegistryClient, tenant: str) -> None:
        form = "application/x-www-form-urlencoded"
        for method, path in (
            ("POST", "tenants/FORM"),
            ("POST", f"devices/{tenant}/form"),
            ("PUT", f"credentials/{tenant}/form"),
        ):
            answer = admin.hub.ask(method, f"/v1/{path}", {}, form)
            assert answer.status == 400, answer
            assert answer.document["error"]

    @pytest.mark.parametrize("subject", ["CN=pump,O=ACME", "CN=pump, O=ACME", "cn = pump , o=ACME"])
    def test_a_subject_has_one_form(self, subject: str) -> None:
        assert normalize_subject(subject, "auth-id") == "CN=pump,O=ACME"


def test_changes_are_in_the_audit_without_secrets(admin: RegistryClient, manager: RegistryClient) -> None:
    manager.done("POST", "devices/acme/audited", {"ext": {"a": 1}})
    manager.done("PUT", "credentials/acme/audited", [password("audited", {"pwd-plain": "very-secret"})])
    manager.done("DELETE", "devices/acme/audited")
    lines = admin.hub.get("audit?tenant=acme&q=acme/audited&limit=10")["lines"]
    assert [(each["action"], each["user"]) for each in lines] == [
        ("device.remove", "boss@acme"),
        ("device.credentials", "boss@acme"),
        ("device.create", "boss@acme"),
    ]
    assert "very-secret" not in json.dumps(lines)
    assert lines[1]["after"] == [{"type": "hashed-password", "auth-id": "audited"}]


def test_devices_outlive_a_restart(admin: RegistryClient, tenant: str) -> None:
    made = admin.done("POST", f"devices/{tenant}/durable", {"ext": {"a": 1}})
    admin.hub.hub.kill()
    admin.hub.hub.start()
    found = admin.done("GET", f"devices/{tenant}/durable")
    assert found.headers["etag"] == made.headers["etag"]


class TestCommands:
    """`waypost hub device`, in the data directory and over HTTP."""

    @pytest.fixture(params=["directory", "http"])
    def place(self, request: pytest.FixtureRequest, admin: RegistryClient, monkeypatch: pytest.MonkeyPatch) -> str:
        """Return the option that names the hub."""
        if request.param == "directory":
            return f"--data={admin.hub.hub.data}"
        token = (admin.hub.hub.data / "operator.token").read_text().strip()
        client = ConsoleClient(admin.hub.base.rstrip("/"), Login(token=token), context=admin.hub.context)
        monkeypatch.setattr("cloud.fleet.place.client_of", lambda _: client)
        give_defaults(device, ("hub", "device"))  # as the whole program does
        return f"--hub={admin.hub.base}"

    @staticmethod
    def called(place: str, *words: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(device, [*words, place], input=stdin)

    def test_a_device_from_its_start_to_its_end(self, place: str) -> None:
        name = f"cli-{place[2:6]}"
        more = ("--via", "gw-1", "--gateway", "plant-1", "--label", "site=berlin")
        made = item_in(self.called(place, "add", name, *more, "--json").stdout)
        assert made["auth_id"] == name
        assert self.called(place, "add", name).exit_code == 1, "it is there already"
        listed = items_in(self.called(place, "list", "--filter", "/ext/waypost/labels/site=b*", "--json").stdout)
        assert [each["id"] for each in listed if each["id"] == name] == [name]
        assert items_in(self.called(place, "list", "--filter", "/enabled=false", "--json").stdout) == []
        old = item_in(self.called(place, "show", name, "--json").stdout)["credentials"][0]["secrets"]
        rotated = self.called(place, "credentials", "rotate", name, "--overlap", "7d", "--json")
        assert item_in(rotated.stdout)["password"] != made["password"]
        found = item_in(self.called(place, "show", name, "--json").stdout)
        assert (found["via"], found["enabled"]) == (["gw-1"], True)
        kept, new = found["credentials"][0]["secrets"]
        assert kept["id"] == old[0]["id"]
        assert kept["not-after"]
        assert "not-after" not in new
        given = self.called(place, "credentials", "rotate", name, "--password-stdin", stdin="chosen\n")
        assert given.stdout == f"{name}: new password of {name}\n"
        assert len(item_in(self.called(place, "show", name, "--json").stdout)["credentials"][0]["secrets"]) == 1
        assert self.called(place, "remove", name).stdout == f"{name}: removed\n"
        assert self.called(place, "show", name).exit_code == 1

    def test_a_moved_device_keeps_the_rest(self, place: str, admin: RegistryClient) -> None:
        waypost = {"selector": "site=berlin", "gateways": ["plant-1"], "labels": {"site": "berlin"}}
        document = {"enabled": False, "via": ["gw-1"], "defaults": {"ttl": 5}, "ext": {"rack": 4, "waypost": waypost}}
        names = [f"moved-{place[2:6]}-{number}" for number in range(2)]
        for name, body in zip(names, (document, {}), strict=True):
            admin.done("POST", f"devices/default/{name}", body)
            self.called(place, "credentials", "rotate", name)
        secret = item_in(self.called(place, "show", names[0], "--json").stdout)["credentials"]
        moved = self.called(place, "move", *names, "--gateway", "plant-2", "--gateway", "plant-3")
        assert moved.stdout.splitlines() == [
            f"{names[0]}: moved to plant-2, plant-3; before, gateways with the labels site=berlin",
            f"{names[1]}: moved to plant-2, plant-3",
        ]
        found, empty = [item_in(self.called(place, "show", name, "--json").stdout) for name in names]
        there = {"gateways": ["plant-2", "plant-3"]}
        assert found["ext"] == {"rack": 4, "waypost": {**there, "labels": {"site": "berlin"}}}
        assert (found["via"], found["defaults"], found["enabled"]) == (["gw-1"], {"ttl": 5}, False)
        assert (found["credentials"], empty["ext"]) == (secret, {"waypost": there})
        again = self.called(place, "move", names[0], "--gateway", "plant-1", "--json")
        assert items_in(again.stdout) == [{"id": names[0], "gateways": ["plant-1"]}]
        self.called(place, "remove", *names)

    def test_a_move_overwrites_no_other_change(
        self, place: str, admin: RegistryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = f"raced-{place[2:6]}"
        admin.done("POST", f"devices/default/{name}", {})

        def changed(document: dict[str, Any], gateways: Sequence[str]) -> tuple[dict[str, Any], str]:
            admin.done("PUT", f"devices/default/{name}", {"ext": {"rack": 5}})
            return _moved(document, gateways)

        monkeypatch.setattr("cloud.fleet.devices._moved", changed)
        answer = self.called(place, "move", name, "--gateway", "plant-2")
        assert answer.exit_code == 1
        assert admin.done("GET", f"devices/default/{name}").document["ext"] == {"rack": 5}
        self.called(place, "remove", name)

    def test_passwords_do_not_pile_up(self, place: str) -> None:
        self.called(place, "add", "piled")
        for _ in range(SECRETS_MAX - 1):
            assert self.called(place, "credentials", "rotate", "piled", "--overlap", "7d").exit_code == 0
        assert self.called(place, "credentials", "rotate", "piled", "--overlap", "7d").exit_code == 1
        assert self.called(place, "credentials", "rotate", "piled").exit_code == 0
        self.called(place, "remove", "piled")

    @pytest.mark.parametrize(
        "words",
        [
            ("add", "a b"),
            ("add", "x", "--via", "a", "--member-of", "b"),
            ("add", "x", "--label", "site"),
            ("add", "x", "--password-stdin"),
            ("list", "--filter", "site=berlin"),
            ("list", "--filter", "/status/created=2026*"),
            ("show", "unknown"),
            ("remove", "unknown"),
            ("move", "unknown", "--gateway", "plant-1"),
            ("move", "unknown"),
            ("credentials", "rotate", "unknown"),
            ("credentials", "rotate", "unknown", "--overlap", "soon"),
        ],
    )
    def test_mistakes_change_nothing(self, place: str, words: tuple[str, ...]) -> None:
        answer = self.called(place, *words)
        assert answer.exit_code in (1, 2)
        assert self.called(place, "show", "x").exit_code == 1
