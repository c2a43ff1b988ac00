"""`hub check` reports each reason not to start, with file, line and path, and creates no file."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from cloud.hub.cli import hub
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.registry import Registry
from tests.support.certificates import Authority

HEAD = "apiVersion: waypost/v1\nkind: Hub\nspec:\n"


def checked(folder: Path, spec: str) -> tuple[int, str]:
    file = folder / "hub.yaml"
    file.write_text(HEAD + spec)
    before = sorted(folder.iterdir())
    done = CliRunner().invoke(hub, ["check", "--config", str(file)])
    assert sorted(folder.iterdir()) == before
    return done.exit_code, done.output.replace(str(folder), "DIR")


def test_valid_configuration_passes(tmp_path: Path) -> None:
    issued = Authority(tmp_path / "pki").issue("hub")
    Registry(sqlite_url(tmp_path / "registry.db"), "w1").close()
    code, said = checked(
        tmp_path,
        f"  amqp: 127.0.0.1:5673\n  tls: {{certificate: {issued.certificate}, key: {issued.key}}}\n"
        f"  registry: sqlite:///{tmp_path}/registry.db\n",
    )
    assert code == 0
    assert "tls: DIR/pki/hub.pem matches its key" in said
    assert "registry: DIR/registry.db, schema " in said
    assert said.endswith("DIR/hub.yaml: no errors\n")


def test_missing_registry_will_be_created(tmp_path: Path) -> None:
    assert "registry: registry.db of the data directory" in checked(tmp_path, "  http: 127.0.0.1:8081\n")[1]
    code, said = checked(tmp_path, f"  registry: sqlite:///{tmp_path}/new.db\n")
    assert (code, "registry: DIR/new.db will be created at the first start" in said) == (0, True)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("  ampq: 127.0.0.1:1\n", 'DIR/hub.yaml:4: spec.ampq: unknown field "ampq"; did you mean "amqp"?'),
        ("  amqp: 127.0.0.1\n", "DIR/hub.yaml:4: spec.amqp: "),
        ("  http: 127.0.0.1:1\n  tls: {certificate: no.pem, key: no.key}\n", "DIR/hub.yaml:5: Hub hub: spec.tls: "),
        ("  tenants: [{name: Acme, quota: {}}]\n", "Hub hub: spec.tenants[0].name: the name of a tenant is"),
        (
            "  tenants: [{name: a, quota: {}}, {name: a, quota: {}}]\n",
            "spec.tenants[1].name: tenant a is listed twice",
        ),
        ("  kafka: {brokers: []}\n", "spec.kafka.brokers"),
        ("  kafka: {brokers: [k:9092], topic: a b}\n", "spec.kafka.topic"),
        ("  kafka: {brokers: [k:9092], user: u}\n", "spec.kafka: user and passwordFile belong together"),
        ("  kafka: {brokers: [k:9092], user: u, passwordFile: p}\n", "spec.kafka: a password needs `tls`"),
        ("  kafka: {brokers: [k:9092], tls: {clientCert: c}}\n", "spec.kafka.tls: clientCert and clientKey belong"),
        ("  kafka: {brokers: ['127.0.0.1:1']}\n", "spec.kafka: 127.0.0.1:1: "),
        ("  messaging: {url: 'http://b'}\n", "spec.messaging.url"),
        ("  messaging: {url: 'amqp://b', user: u}\n", "spec.messaging: user and passwordFile belong together"),
        ("  messaging: {url: 'amqp://b', user: u, passwordFile: p}\n", "spec.messaging: a password needs amqps"),
        ("  messaging: {url: 'amqps://b', tls: {clientKey: k}}\n", "spec.messaging.tls: clientCert and clientKey"),
        ("  messaging: {url: 'amqp://b', tenants: [a, b], copies: c}\n", "spec.messaging.copies: several tenants"),
        (
            "  messaging: {url: 'amqp://b', replies: 'r.{tenant}'}\n",
            "spec.messaging.replies: {tenant} must be followed",
        ),
        ("  messaging: {url: 'amqp://b', tenants: [A]}\n", "spec.messaging.tenants: the name of a tenant is"),
        ("  tenantQuota: {bytesPerSecond: 0}\n", "spec.tenantQuota: 0 bytes would stop the tenant"),
        ("  tenants: [{name: a, quota: {gateways: 0}}]\n", "spec.tenants[0].quota.gateways: "),
        (
            "  registry: sqlite:////nowhere/at/all.db\n",
            "DIR/hub.yaml:4: Hub hub: spec.registry: folder /nowhere/at is missing",
        ),
    ],
)
def test_invalid_configuration_is_reported(tmp_path: Path, spec: str, expected: str) -> None:
    code, said = checked(tmp_path, spec)
    assert code == 2
    assert expected in said


def test_foreign_database_is_reported(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "other.db")
    engine = sa.create_engine(url)
    with engine.begin() as tx:
        tx.exec_driver_sql("CREATE TABLE invoices (number INTEGER)")
    engine.dispose()
    code, said = checked(tmp_path, f"  registry: sqlite:///{tmp_path}/other.db\n")
    assert (code, "tables of another program (invoices)" in said) == (2, True)
