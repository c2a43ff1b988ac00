"""A broker.xml of Artemis becomes resources that can be applied, and the report leaves no setting out."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from bridge.resources.parse import parse, to_yaml
from edge.appliance.importing import artemis_file
from edge.appliance.importing.artemis import import_artemis
from edge.appliance.importing.report import ImportedConfiguration, ImportOutcome
from edge.appliance.importing.text_file import ImportFileError
from edge.appliance.main import run
from edge.broker.model.authorization import Operation
from edge.broker.model.topics import matches as fits
from edge.broker.security.password_hashes import matches
from edge.configuration.kinds import KINDS

LEFT_OUT, CHANGED = ImportOutcome.LEFT_OUT, ImportOutcome.CHANGED
IMPORTED, NOT_NEEDED = ImportOutcome.IMPORTED, ImportOutcome.NOT_NEEDED
OF_ARTEMIS = (
    "ENC(1024:A441DC3F39341189A09AEAFDE4B2B5DCE25DE32002783E162526366196BA5063:2B8238935C3AE17695D657F915412DD2325A452A"
    "6816B514B11FB155E3822251E97DD7E9474D1E123D42F11CDCCB0A9D5E7B2C062474B46D5F6DFF960989FC73)"
)
"""Hash of the password `secret1` as `artemis create` 2.44 wrote it."""
ACCEPTORS = "<acceptors>{}</acceptors>"
DLQ = '<address name="DLQ"><anycast><queue name="DLQ"/></anycast></address>'


class BrokerFolder:
    """Folder `etc` of a broker."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, core: str, *, users: str = "", roles: str = "") -> Path:
        (self.path / "artemis-users.properties").write_text(users)
        (self.path / "artemis-roles.properties").write_text(roles)
        file = self.path / "broker.xml"
        file.write_text(
            f"<configuration xmlns='urn:activemq' xmlns:xi='http://www.w3.org/2001/XInclude'>\n"
            f"<core xmlns='urn:activemq:core'>\n{core}\n</core></configuration>"
        )
        return file

    def take(self, core: str, *, users: str = "", roles: str = "") -> ImportedConfiguration:
        """Import a configuration, and require that the resources can be applied together."""
        found = import_artemis(self.write(core, users=users, roles=roles), "hall")
        whole = "---\n".join(to_yaml(document) for document in found.documents)
        assert KINDS.validate(parse(KINDS, whole, "imported")) == []
        return found


@pytest.fixture
def folder(tmp_path: Path) -> BrokerFolder:
    return BrokerFolder(tmp_path)


def specs(found: ImportedConfiguration, kind: str, field: str = "") -> dict[str, Any]:
    """Return the `spec` of each document of a kind, by a field of it or by its name."""
    chosen = [each for each in found.documents if each["kind"] == kind]
    return {each["spec"][field] if field else each["metadata"]["name"]: each["spec"] for each in chosen}


def addresses(found: ImportedConfiguration) -> dict[str, Any]:
    return specs(found, "Address", "address")


def outcomes(found: ImportedConfiguration) -> dict[str, ImportOutcome]:
    return {each.setting: each.outcome for each in found.notes}


# --- acceptors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("acceptors", "listeners"), [
    ("", {}),
    ('<acceptor name="a">tcp://0.0.0.0:5672?protocols=AMQP;useEpoll=true</acceptor>', {"amqp": "0.0.0.0:5672"}),
    ('<acceptor name="a">tcp://:1883?protocols=MQTT</acceptor>', {"mqtt": "0.0.0.0:1883"}),
    ('<acceptor name="a">tcp://[::1]:1883?protocols=MQTT</acceptor>', {"mqtt": "[::1]:1883"}),
    ('<acceptor name="a">tcp://host:61616</acceptor>', {"amqp": "host:61616"}),
    (
        '<acceptor name="all">tcp://0.0.0.0:61616</acceptor>'
        '<acceptor name="amqp">tcp://0.0.0.0:5672?protocols=AMQP</acceptor>',
        {"amqp": "0.0.0.0:5672", "mqtt": "0.0.0.0:61616"},
    ),
    ('<acceptor name="a">tcp://0.0.0.0:61613?protocols=STOMP</acceptor>', {}),
    ('<acceptor name="a">vm://0</acceptor><acceptor name="b">tcp://h:99999</acceptor>', {}),
])  # fmt: skip
def test_acceptors(folder: BrokerFolder, acceptors: str, listeners: dict[str, str]) -> None:
    found = folder.take(ACCEPTORS.format(acceptors))
    assert specs(found, "Gateway")["hall"]["listeners"] == listeners
    left = {each.setting for each in found.notes if each.outcome is LEFT_OUT}
    assert bool(left) == ("AMQP" not in acceptors and "MQTT" not in acceptors and bool(acceptors)) or "all" in acceptors


@pytest.mark.parametrize(("parameters", "tls"), [
    ("keyStorePath=broker.p12;keyStorePassword=x", None),
    ("keyStorePath=broker.pem;keyStoreType=PEM", {"certificate": "broker.pem", "key": "broker.pem"}),
    (
        "keyStorePath=broker.pem;keyStoreType=PEM;needClientAuth=true;trustStorePath=ca.pem;trustStoreType=PEM",
        {"certificate": "broker.pem", "key": "broker.pem", "clientCa": "ca.pem", "clientRequired": True},
    ),
])  # fmt: skip
def test_tls(folder: BrokerFolder, parameters: str, tls: dict[str, Any] | None) -> None:
    acceptor = f'<acceptor name="a">tcp://0.0.0.0:5671?protocols=AMQP;sslEnabled=true;{parameters}</acceptor>'
    listeners = specs(folder.take(ACCEPTORS.format(acceptor)), "Gateway")["hall"]["listeners"]
    assert listeners == {"amqps": "0.0.0.0:5671"} | ({"tls": tls} if tls else {})


@pytest.mark.parametrize(
    "parameters", ["needClientAuth=true", "sslEnabled=true;needClientAuth=true;trustStorePath=t.jks"]
)
def test_a_listener_that_requires_certificates_is_not_opened_without(folder: BrokerFolder, parameters: str) -> None:
    acceptor = f'<acceptor name="a">tcp://0.0.0.0:5671?protocols=AMQP;{parameters}</acceptor>'
    found = folder.take(ACCEPTORS.format(acceptor))
    assert specs(found, "Gateway")["hall"]["listeners"] == {}
    assert outcomes(found)["acceptor a"] is LEFT_OUT


# --- addresses --------------------------------------------------------------------------------------------------------


def test_addresses_queues_and_subscriptions(folder: BrokerFolder) -> None:
    found = folder.take(
        f"""<addresses>{DLQ}
        <address name="orders.eu"><anycast><queue name="orders.eu"/><queue name="second"/></anycast></address>
        <address name="jobs"><anycast><queue name="workers"/></anycast></address>
        <address name="news"><multicast><queue name="archive" max-consumers="3"><filter string="a=1"/></queue>
        <queue name="audit"/></multicast></address>
        <address name="both"><anycast><queue name="both"/></anycast><multicast/></address>
        <address name="a#b"><multicast/></address><address name="activemq.management"/>
        </addresses>"""
    )
    kinds = {name: spec["type"] for name, spec in addresses(found).items()}
    assert kinds == {
        "DLQ": "queue", "orders.eu": "queue", "jobs": "queue", "news": "topic", "archive": "subscription",
        "audit": "subscription", "both": "queue",
    }  # fmt: skip
    assert addresses(found)["archive"] == {
        "address": "archive", "type": "subscription", "topic": "news", "maxConsumers": 3,
    }  # fmt: skip
    results = outcomes(found)
    assert results["queue second"] is LEFT_OUT
    assert results["queue workers"] is CHANGED
    assert results["queue archive filter"] is LEFT_OUT
    assert results["address a#b"] is LEFT_OUT
    assert results["multicast"] is LEFT_OUT


def test_settings_are_merged_and_the_specific_one_wins(folder: BrokerFolder) -> None:
    found = folder.take(
        f"""<address-settings>
        <address-setting match="orders.#"><max-delivery-attempts>3</max-delivery-attempts>
          <redelivery-delay>500</redelivery-delay><redelivery-delay-multiplier>2</redelivery-delay-multiplier>
          <max-size-bytes>10Mb</max-size-bytes><address-full-policy>FAIL</address-full-policy></address-setting>
        <address-setting match="#"><dead-letter-address>DLQ</dead-letter-address>
          <expiry-address>missing</expiry-address><max-expiry-delay>60000</max-expiry-delay>
          <address-full-policy>PAGE</address-full-policy><new-in-3>1</new-in-3></address-setting>
        <address-setting match="jobs"><max-delivery-attempts>-1</max-delivery-attempts></address-setting>
        </address-settings>
        <addresses>{DLQ}<address name="orders.eu"><anycast><queue name="orders.eu"/></anycast></address>
        <address name="jobs"><anycast><queue name="jobs"/></anycast></address></addresses>"""
    )
    made = addresses(found)
    assert made["orders.eu"] == {
        "address": "orders.eu", "type": "queue", "deadletter": "DLQ", "messageTtl": {"maximum": 60_000},
        "quota": {"bytes": 10 << 20},
        "messageRedelivery": {
            "maximumDeliveryAttempts": 3, "redeliveryDelay": 500, "redeliveryDelayMultiplier": 2.0,
            "maximumDeliveryDelay": 5_000,
        },
    }  # fmt: skip
    assert made["jobs"] == {
        "address": "jobs",
        "type": "queue",
        "deadletter": "DLQ",
        "messageTtl": {"maximum": 60_000},
    }
    assert made["DLQ"]["type"] == "deadletter"
    assert "deadletter" not in made["DLQ"]
    assert made["orders/#"]["messageRedelivery"] == made["orders.eu"]["messageRedelivery"]
    results = outcomes(found)
    assert results["address-setting # expiry-address"] is LEFT_OUT
    assert results["address-setting # new-in-3"] is LEFT_OUT
    assert results["address-setting orders.#"] is CHANGED


def test_without_its_dead_letter_address_no_delivery_is_the_last(folder: BrokerFolder) -> None:
    found = folder.take(
        """<address-settings><address-setting match="#"><dead-letter-address>gone</dead-letter-address>
        </address-setting></address-settings><addresses><address name="jobs"><anycast><queue name="jobs"/></anycast>
        </address></addresses>"""
    )
    assert addresses(found)["jobs"] == {"address": "jobs", "type": "queue"}


def test_type_of_addresses_that_are_not_declared(folder: BrokerFolder) -> None:
    setting = """<address-settings><address-setting match="#">
        <default-address-routing-type>ANYCAST</default-address-routing-type>
        <auto-create-queues>true</auto-create-queues></address-setting></address-settings>"""
    found = folder.take(setting)
    assert specs(found, "AddressSpace")["default"]["defaultType"] == "queue"
    assert outcomes(found)["address-setting # auto-create-queues"] is CHANGED
    assert specs(folder.take(""), "AddressSpace")["default"]["defaultType"] == "topic"


def test_other_marks_of_wildcards(folder: BrokerFolder) -> None:
    found = folder.take(
        """<wildcard-addresses><delimiter>/</delimiter><any-words>></any-words></wildcard-addresses>
        <address-settings><address-setting match="plant/>"><max-expiry-delay>5</max-expiry-delay></address-setting>
        <address-setting match="*"><max-expiry-delay>5</max-expiry-delay></address-setting></address-settings>"""
    )
    assert addresses(found) == {"plant/#": {"address": "plant/#", "type": "topic", "messageTtl": {"maximum": 5}}}
    assert outcomes(found)["address-setting *"] is LEFT_OUT


# --- users ------------------------------------------------------------------------------------------------------------


def test_users_keep_their_passwords(folder: BrokerFolder) -> None:
    users = f"# people\nadmin = {OF_ARTEMIS}\nplain = pass word\nmasked = ENC(-7d3f)\n = x\nempty =\n"
    made = specs(folder.take("", users=users), "MessagingUser", "username")
    assert set(made) == {"admin", "plain"}
    assert matches(made["admin"]["authentication"]["passwordHash"], b"secret1")
    assert made["plain"]["authentication"]["password"] == "cGFzcyB3b3Jk"


def allowed(found: ImportedConfiguration, user: str, operation: Operation, address: str) -> bool:
    rules = specs(found, "MessagingUser", "username")[user]["authorization"]
    return any(
        fits(each, address) for rule in rules if operation.value in rule["operations"] for each in rule["addresses"]
    )


def test_only_the_most_specific_setting_gives_rights(folder: BrokerFolder) -> None:
    found = folder.take(
        """<security-settings>
        <security-setting match="#"><permission type="send" roles="amq, robots"/>
          <permission type="consume" roles="amq"/><permission type="manage" roles="amq"/></security-setting>
        <security-setting match="orders.#"><permission type="send" roles="amq"/>
          <permission type="consume" roles="amq,robots"/></security-setting>
        </security-settings>
        <addresses><address name="orders.eu"><multicast/></address><address name="free"><multicast/></address>
        </addresses>""",
        users="boss=1\nrobot=2\nnobody=3",
        roles="amq = boss\nrobots = robot , boss",
    )
    send, recv = Operation.SEND, Operation.RECV
    assert allowed(found, "boss", send, "orders.eu")
    assert allowed(found, "boss", recv, "anything")
    assert allowed(found, "robot", send, "free")
    assert allowed(found, "robot", recv, "orders.eu")
    assert allowed(found, "robot", recv, "orders/eu")
    assert not allowed(found, "robot", send, "orders.eu")
    assert not allowed(found, "robot", send, "orders/eu")
    assert not allowed(found, "robot", recv, "free")
    assert specs(found, "MessagingUser", "username")["nobody"]["authorization"] == []
    assert outcomes(found)["permission send robots at #"] is LEFT_OUT
    assert outcomes(found)["permission manage at #"] is LEFT_OUT


def test_one_word_does_not_become_every_name_with_dots(folder: BrokerFolder) -> None:
    found = folder.take(
        """<security-settings><security-setting match="*"><permission type="send" roles="r"/></security-setting>
        </security-settings><addresses><address name="one"><multicast/></address>
        <address name="two.words"><multicast/></address></addresses>""",
        users="user=1",
        roles="r=user",
    )
    assert allowed(found, "user", Operation.SEND, "one")
    assert not allowed(found, "user", Operation.SEND, "two.words")


def test_security_can_be_off(folder: BrokerFolder) -> None:
    found = folder.take("<security-enabled>false</security-enabled>")
    assert specs(found, "AddressSpace")["default"]["authenticationService"] == {"name": "none"}
    assert specs(folder.take(""), "AddressSpace")["default"]["authenticationService"] == {"name": "standard"}


# --- peers ------------------------------------------------------------------------------------------------------------


def test_bridges_and_broker_connections(folder: BrokerFolder) -> None:
    found = folder.take(
        """<connectors><connector name="far">tcp://far.example:61616</connector></connectors>
        <bridges><bridge name="Up 1"><queue-name>work</queue-name><forwarding-address>there</forwarding-address>
          <retry-interval>1000</retry-interval><user>u</user><password>p</password>
          <static-connectors><connector-ref>far</connector-ref></static-connectors></bridge>
        <bridge name="filtered"><queue-name>work</queue-name><filter string="a=1"/>
          <static-connectors><connector-ref>far</connector-ref></static-connectors></bridge>
        <bridge name="none"><queue-name>work</queue-name></bridge></bridges>
        <broker-connections><amqp-connection uri="tcp://hub.example:5671?sslEnabled=true" name="hub">
          <sender address-match="plant.#"/><receiver queue-name="cmd"/><mirror/></amqp-connection>
        </broker-connections>
        <addresses><address name="jobs"><anycast><queue name="work"/></anycast></address></addresses>"""
    )
    connectors = {each["name"]: each for each in specs(found, "AddressSpace")["default"]["connectors"]}
    assert connectors["up-1"]["endpointHosts"] == [{"host": "far.example", "port": 61616}]
    assert connectors["up-1"]["credentials"] == {"username": "u", "password": "p", "plainWithoutTls": True}
    assert connectors["hub"]["tls"] == {}
    made = addresses(found)
    [bridge] = made["jobs"]["forwarders"]
    assert bridge["remoteAddress"] == "up-1/there"
    assert [each["remoteAddress"] for each in made["plant/#"]["forwarders"]] == ["hub/plant/#"]
    assert [each["direction"] for each in made["cmd"]["forwarders"]] == ["in"]
    results = outcomes(found)
    assert results["bridge none"] is LEFT_OUT
    assert results["bridge filtered filter"] is LEFT_OUT
    assert results["mirror"] is LEFT_OUT
    assert results["connector far"] is NOT_NEEDED


# --- files ------------------------------------------------------------------------------------------------------------


def test_included_files_stand_in_their_place(folder: BrokerFolder) -> None:
    (folder.path / "more.xml").write_text(f"<addresses xmlns='urn:activemq:core'>{DLQ}</addresses>")
    found = folder.take('<xi:include href="/elsewhere/more.xml"/>')
    assert set(addresses(found)) == {"DLQ"}
    assert {each.place.partition(":")[0] for each in found.notes} == {"more.xml"}


@pytest.mark.parametrize("text", [
    "", "<a", "<configuration/>", "<core>\x00</core>",
    '<!DOCTYPE core [<!ENTITY a "aaaa">]><core>&a;</core>',
    f"{'<core>' * (artemis_file.DEPTH_MAX + 1)}{'</core>' * (artemis_file.DEPTH_MAX + 1)}",
    '<core xmlns:xi="http://www.w3.org/2001/XInclude"><xi:include href="broker.xml"/></core>',
    '<core><xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="missing.xml"/></core>',
])  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broker.xml"
    file.write_text(text)
    with pytest.raises(ImportFileError):
        import_artemis(file, "hall")


def test_deepest_allowed_level(folder: BrokerFolder) -> None:
    inner = artemis_file.DEPTH_MAX - 2  # below `configuration` and `core`
    assert folder.take("<x>" * inner + "</x>" * inner).count(NOT_NEEDED) == 1


@pytest.mark.parametrize(("text", "size"), [
    ("10", 10), ("10K", 10_240), ("1Gb", 1 << 30), ("5 mb", 5 << 20), ("-1", None), ("10%", None), ("", None),
])  # fmt: skip
def test_sizes(text: str, size: int | None) -> None:
    assert artemis_file.size_of(text) == size


def test_command_writes_the_resources(folder: BrokerFolder, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder.path / "hall.yaml"
    file = folder.write(ACCEPTORS.format('<acceptor name="a">tcp://0.0.0.0:5672?protocols=AMQP</acceptor>'))
    assert run(["import", str(file), "-f", str(out), "--name", "hall3"]) == 0
    assert "amqp: 0.0.0.0:5672" in out.read_text()
    assert "hall3" in out.read_text()
    capsys.readouterr()


def test_hash_of_artemis_is_pbkdf2_with_sha1() -> None:
    digest = hashlib.pbkdf2_hmac("sha1", "pässword".encode(), b"salt", 7, 64)
    hashed = f"ENC(7:{b'salt'.hex()}:{digest.hex()})"
    assert matches(hashed, "pässword".encode())
    assert not matches(hashed, b"password")
