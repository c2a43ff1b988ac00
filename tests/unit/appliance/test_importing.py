"""A configuration of Mosquitto becomes resources that can be applied, and the report leaves no setting out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.resources.parse import parse, to_yaml
from edge.appliance.importing import mosquitto_file, text_file
from edge.appliance.importing.enmasse import import_enmasse
from edge.appliance.importing.mosquitto import import_mosquitto
from edge.appliance.importing.report import ImportedConfiguration, ImportOutcome
from edge.appliance.importing.text_file import ImportFileError
from edge.appliance.main import run
from edge.broker.security.limits import RULES_PER_USER_MAX
from edge.configuration.kinds import KINDS
from tests.support.mosquitto_passwords import mosquitto_hash

LEFT_OUT, CHANGED = ImportOutcome.LEFT_OUT, ImportOutcome.CHANGED
IMPORTED, NOT_NEEDED = ImportOutcome.IMPORTED, ImportOutcome.NOT_NEEDED
OF_THE_MANUAL = (
    "acl_file allow_anonymous allow_duplicate_messages allow_zero_length_clientid auth_plugin "
    "auth_plugin_deny_special_chars auto_id_prefix autosave_interval autosave_on_changes bind_address "
    "bind_interface bridge_alpn bridge_attempt_unsubscribe bridge_bind_address bridge_cafile bridge_capath "
    "bridge_certfile bridge_identity bridge_insecure bridge_keyfile bridge_max_packet_size bridge_outgoing_retain "
    "bridge_protocol_version bridge_psk bridge_require_ocsp bridge_tls_version cafile capath certfile "
    "check_retain_source ciphers ciphers_tls1.3 cleansession clientid_prefixes connection_messages crlfile "
    "dhparamfile http_dir idle_timeout keepalive_interval keyfile local_cleansession local_clientid local_password "
    "local_username log_dest log_facility log_timestamp log_timestamp_format log_type max_connections "
    "max_inflight_bytes max_inflight_messages max_keepalive max_packet_size max_qos max_queued_bytes "
    "max_queued_messages max_topic_alias memory_limit message_size_limit mount_point notification_topic "
    "notifications notifications_local_only password_file persistence persistence_file persistence_location "
    "persistent_client_expiration pid_file protocol psk_file psk_hint queue_qos0_messages remote_clientid "
    "remote_password remote_username require_certificate restart_timeout retain_available round_robin "
    "set_tcp_nodelay socket_domain start_type sys_interval threshold tls_engine tls_keyform tls_version try_private "
    "upgrade_outgoing_qos use_identity_as_username use_subject_as_username use_username_as_clientid user "
    "websockets_headers_size websockets_log_level "
)
"""Settings of mosquitto.conf(5), version 2.0.11."""


class Folder:
    """Folder of a broker's configuration."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, text: str, *, passwords: str = "", acl: str = "") -> Path:
        (self.path / "passwd").write_text(passwords)
        (self.path / "acl").write_text(acl)
        file = self.path / "mosquitto.conf"
        file.write_text(text)
        return file

    def take(self, text: str, *, passwords: str = "", acl: str = "") -> ImportedConfiguration:
        """Import a text, and require that the resources can be applied together."""
        found = import_mosquitto(self.write(text, passwords=passwords, acl=acl), "hall")
        whole = "---\n".join(to_yaml(document) for document in found.documents)
        assert KINDS.validate(parse(KINDS, whole, "imported")) == []
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def specs(found: ImportedConfiguration, kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each["spec"] for each in found.documents if each["kind"] == kind}


def outcomes(found: ImportedConfiguration) -> dict[str, ImportOutcome]:
    return {each.place.partition(":")[2] + " " + each.setting: each.outcome for each in found.notes}


def outcome(found: ImportedConfiguration, setting: str) -> ImportOutcome:
    [one] = [each.outcome for each in found.notes if each.setting == setting]
    return one


def test_every_setting_of_the_manual_has_a_result(folder: Folder) -> None:
    settings = [f"{each} {'passwd' if each.endswith('_file') else 1}" for each in OF_THE_MANUAL.split()]
    inner = [each for each in settings if each.split(" ")[0] in mosquitto_file.BRIDGE]
    outer = [each for each in settings if each not in inner]
    text = "\n".join(["listener 1883", *outer, "connection one", "address peer", "topic a out", *inner, ""])
    found = import_mosquitto(folder.write(text), "hall")
    assert set(OF_THE_MANUAL.split()) - {each.setting for each in found.notes} == set()
    assert [
        each for each in found.notes if each.words == "unknown" or not (each.words or each.outcome is IMPORTED)
    ] == []


@pytest.mark.parametrize(("text", "listeners", "mode"), [
    ("", {"mqtt": "127.0.0.1:1883"}, "none"),
    ("port 1884", {"mqtt": "0.0.0.0:1884"}, "standard"),
    ("bind_address 10.0.0.1", {"mqtt": "10.0.0.1:1883"}, "standard"),
    ("port 1884\nallow_anonymous true", {"mqtt": "0.0.0.0:1884"}, "none"),
    ("listener 1883", {"mqtt": "0.0.0.0:1883"}, "standard"),
    ("listener 1883\nallow_anonymous true", {"mqtt": "0.0.0.0:1883"}, "none"),
    ("listener 1883 ::1", {"mqtt": "[::1]:1883"}, "standard"),
    ("listener 9001\nprotocol websockets", {"mqttWs": "0.0.0.0:9001"}, "standard"),
    ("listener 0 /run/mosquitto.sock", {}, "standard"),
])  # fmt: skip
def test_listeners(folder: Folder, text: str, listeners: dict[str, str], mode: str) -> None:
    found = folder.take(text)
    assert specs(found, "Gateway")["hall"]["listeners"] == listeners
    assert specs(found, "AddressSpace")["default"]["authenticationService"] == {"name": mode}


def test_listeners_of_one_kind_and_certificates_are_one(folder: Folder) -> None:
    tls = "certfile server.crt\nkeyfile server.key\n"
    found = folder.take(
        f"listener 1883\nlistener 1884\nlistener 8883\n{tls}cafile ca.crt\nrequire_certificate true\n"
        f"tls_version tlsv1.3\nlistener 8443\nprotocol websockets\n{tls}"
    )
    assert specs(found, "Gateway")["hall"]["listeners"] == {
        "mqtt": "0.0.0.0:1883",
        "mqtts": "0.0.0.0:8883",
        "tls": {
            "certificate": "server.crt", "key": "server.key", "clientCa": "ca.crt", "clientRequired": True,
            "minimum": "1.3",
        },
    }  # fmt: skip
    assert outcomes(found)["2 listener"] is LEFT_OUT, "a second one without TLS"
    assert outcomes(found)["9 listener"] is LEFT_OUT, "other authorities"


def test_users_with_their_rights(folder: Folder) -> None:
    found = folder.take(
        "listener 1883\npassword_file /etc/mosquitto/passwd\nacl_file /etc/mosquitto/acl\n",
        passwords=f"# people\npump7:{mosquitto_hash('one')}\nhall person:{mosquitto_hash('two', 0)}\nold:plain\n",
        acl="topic read a\nuser pump7\ntopic write up/pump7\ntopic write up/%u\n"
        "topic state/with space\ntopic readwrite b/#/c\n"
        "user hall person\ntopic read up/#\nuser ghost\ntopic x\npattern read cmd/%c/#\n",
    )
    users = specs(found, "MessagingUser")
    assert {name: spec["username"] for name, spec in users.items()} == {
        "default.pump7": "pump7",
        "default.hall-person": "hall person",
    }
    assert users["default.pump7"]["authorization"] == [
        {"addresses": ["up/pump7"], "operations": ["send"]},
        {"addresses": ["state/with space"], "operations": ["send", "recv"]},
        {"addresses": ["cmd/%c/#"], "operations": ["recv"]},
    ]
    assert users["default.hall-person"]["authorization"] == [
        {"addresses": ["up/#", "cmd/%c/#"], "operations": ["recv"]}
    ]
    refused = {each.setting for each in found.notes if each.outcome is LEFT_OUT}
    assert refused == {"user old", "topic read a", "topic write up/%u", "topic readwrite b/#/c", "topic x"}


def test_denial_takes_the_grants_that_it_meets(folder: Folder) -> None:
    """Never more than before."""
    found = folder.take(
        "listener 1883\npassword_file passwd\nacl_file acl\n",
        passwords=f"a:{mosquitto_hash('a')}\nb:{mosquitto_hash('b')}\n",
        acl="user a\ntopic read plant/#\ntopic deny plant/secret\ntopic read other/#\nuser b\ntopic read plant/#\n"
        "pattern write plant/%u\n",
    )
    users = specs(found, "MessagingUser")
    assert users["default.a"]["authorization"] == [{"addresses": ["other/#"], "operations": ["recv"]}]
    assert users["default.b"]["authorization"] == [{"addresses": ["plant/#"], "operations": ["recv"]}]
    assert outcome(found, "topic deny plant/secret") is outcome(found, "pattern write plant/%u") is LEFT_OUT


def test_without_a_list_users_may_do_everything(folder: Folder) -> None:
    found = folder.take(
        "listener 1883\npassword_file passwd\nallow_anonymous true\n", passwords=f"a:{mosquitto_hash('a')}\n"
    )
    everything = [{"addresses": ["#"], "operations": ["send", "recv"]}]
    assert specs(found, "MessagingUser")["default.a"]["authorization"] == everything
    assert outcome(found, "allow_anonymous") is LEFT_OUT


@pytest.mark.parametrize("narrowed", ["acl_file acl", "plugin x.so", "auth_plugin x.so", "clientid_prefixes dev-"])
def test_clients_without_a_user_get_no_more_than_before(folder: Folder, narrowed: str) -> None:
    found = folder.take(f"listener 1883\nallow_anonymous true\n{narrowed}\n", acl="topic read public/#\n")
    assert specs(found, "AddressSpace")["default"]["authenticationService"] == {"name": "standard"}
    assert outcome(found, "allow_anonymous") is LEFT_OUT


@pytest.mark.parametrize("protection", [
    "psk_hint x\npsk_file f", "certfile c\nkeyfile k\ncapath d\nrequire_certificate true", "bind_interface eth1",
    "mount_point a/", "certfile c", "cafile ca\nrequire_certificate true",
])  # fmt: skip
def test_listener_whose_protection_is_left_out_is_left_out(folder: Folder, protection: str) -> None:
    found = folder.take(f"allow_anonymous true\nlistener 1883 127.0.0.1\nlistener 8883\n{protection}\n")
    assert specs(found, "Gateway")["hall"]["listeners"] == {"mqtt": "127.0.0.1:1883"}
    assert outcomes(found)["3 listener"] is LEFT_OUT


def test_one_listener_that_needs_users_makes_all_need_them(folder: Folder) -> None:
    found = folder.take(
        "per_listener_settings true\nlistener 1883 127.0.0.1\nallow_anonymous true\n"
        "listener 1884\nprotocol websockets\n"
    )
    assert specs(found, "AddressSpace")["default"]["authenticationService"] == {"name": "standard"}


def test_lists_that_differ_give_no_rights(folder: Folder) -> None:
    (folder.path / "wide").write_text("user a\ntopic readwrite #\n")
    found = folder.take(
        "per_listener_settings true\nlistener 1883 127.0.0.1\npassword_file passwd\nacl_file wide\n"
        "listener 9001\nprotocol websockets\npassword_file passwd\nacl_file acl\n",
        passwords=f"a:{mosquitto_hash('a')}\n",
        acl="user a\ntopic read public\n",
    )
    assert specs(found, "MessagingUser")["default.a"]["authorization"] == []


def test_clients_with_certificates_are_users_of_the_list(folder: Folder) -> None:
    found = folder.take(
        "acl_file acl\nlistener 8883\ncertfile c\nkeyfile k\ncafile ca\nrequire_certificate true\n"
        "use_identity_as_username true\n",
        acl="user pump7\ntopic write up/#\n",
    )
    assert specs(found, "AddressSpace")["default"]["authenticationService"] == {"name": "external"}
    assert specs(found, "MessagingUser")["default.pump7"]["authentication"] == {"type": "password"}


def test_more_filters_than_a_rule_has(folder: Folder) -> None:
    count = 2 * RULES_PER_USER_MAX + 1
    found = folder.take(
        "listener 1883\npassword_file passwd\nacl_file acl\n",
        passwords=f"a:{mosquitto_hash('a')}\n",
        acl="user a\n" + "".join(f"topic write t/{number}\n" for number in range(count)),
    )
    rules = specs(found, "MessagingUser")["default.a"]["authorization"]
    assert [len(rule["addresses"]) for rule in rules] == [RULES_PER_USER_MAX, RULES_PER_USER_MAX, 1]


def test_limits(folder: Folder) -> None:
    found = folder.take(
        "max_packet_size 1000\nmax_inflight_messages 0\nmax_keepalive 90\npersistent_client_expiration 2w\n"
        "memory_limit x\nlistener 1883\nmax_connections -1\nlistener 9001\nprotocol websockets\nmax_connections 50\n"
    )
    assert specs(found, "Gateway")["hall"]["limits"] == {
        "packetBytesMax": 1000,
        "keepAliveSMax": 90,
        "connectionsMax": 50,
        "sessionExpirySMax": 14 * 86_400,
    }
    assert outcome(found, "max_inflight_messages") is CHANGED
    assert outcome(found, "memory_limit") is LEFT_OUT


def test_bridges(folder: Folder) -> None:
    found = folder.take(
        "listener 1883\nallow_anonymous true\nconnection my cloud\naddresses one.example:8883 [2001:db8::1] two\n"
        "bridge_cafile ca\nremote_username u\nremote_password p w\nremote_clientid c\nkeepalive_interval 30\n"
        'topic plant/# out 1 "" site9/\ntopic cmd/+ in 2 in/ out/\ntopic x\ntopic "" out 0 a b\n'
        'topic plant/# out 1 "" b/\n'
        "topic # both 1 l/ r/\ntopic $SYS/# out\ntopic + out 1 a b/+/+/\nbridge_insecure true\n"
        "connection second\ntopic x out\nconnection third\naddress peer\nusername u\npassword p\n"
    )
    space = specs(found, "AddressSpace")["default"]
    assert space["connectors"] == [
        {
            "name": "my-cloud", "type": "mqtt", "container": "c", "mqtt": {"keepAlive": "30s"}, "tls": {"caCert": "ca"},
            "endpointHosts": [
                {"host": "one.example", "port": 8883}, {"host": "2001:db8::1", "port": 1883},
                {"host": "two", "port": 1883},
            ],
            "credentials": {"username": "u", "password": "p w"},
        },
        {
            "name": "third", "type": "mqtt", "endpointHosts": [{"host": "peer", "port": 1883}],
            "credentials": {"username": "u", "password": "p", "plainWithoutTls": True},
        },
    ]  # fmt: skip
    forwarders = {spec["address"]: spec["forwarders"] for spec in specs(found, "Address").values()}
    assert forwarders == {
        "plant/#": [
            {"name": "my-cloud-10-out", "remoteAddress": "my-cloud/site9/plant/#"},
            {"name": "my-cloud-14-out", "remoteAddress": "my-cloud/b/plant/#"},
        ],
        "in/cmd/+": [{"name": "my-cloud-11-in", "direction": "in", "remoteAddress": "my-cloud/out/cmd/+"}],
        "x": [{"name": "my-cloud-12-out", "remoteAddress": "my-cloud/x", "qos": 0}],
        "a": [{"name": "my-cloud-13-out", "remoteAddress": "my-cloud/b", "qos": 0}],
        "l/#": [{"name": "my-cloud-15-out", "remoteAddress": "my-cloud/r/#"}],
    }
    results = outcomes(found)
    assert [results[f"{line} topic"] for line in (15, 16, 17)] == [CHANGED, LEFT_OUT, LEFT_OUT]
    assert results["19 connection"] is results["18 bridge_insecure"] is LEFT_OUT


def test_two_hundred_rules_of_a_bridge(folder: Folder) -> None:
    rules = "".join(f"topic hall/{number}/# out 1 site/ cloud/\n" for number in range(200))
    found = folder.take(f"listener 1883\nconnection cloud\naddress peer\n{rules}")
    assert len(specs(found, "Address")) == 200
    assert [each for each in found.notes if each.outcome is LEFT_OUT] == []


def test_included_folder_and_settings_of_each_listener(folder: Folder) -> None:
    inner = folder.path / "conf.d"
    inner.mkdir()
    (inner / "1.conf").write_text("listener 1883\nallow_anonymous true\n")
    (inner / "2.conf").write_text("listener 9001\nprotocol websockets\nallow_anonymous false\n")
    (inner / "other.txt").write_text("nonsense here\n")
    found = folder.take("per_listener_settings true\ninclude_dir /etc/of-another-machine/conf.d\n")
    assert specs(found, "Gateway")["hall"]["listeners"] == {"mqtt": "0.0.0.0:1883", "mqttWs": "0.0.0.0:9001"}
    assert [each.outcome for each in found.notes if each.setting == "allow_anonymous"] == [LEFT_OUT, IMPORTED]


@pytest.mark.parametrize(("name", "content", "words"), [
    ("passwd", None, "cannot be read"),
    ("passwd", b"\xff\xfe", "not a text"),
    ("conf.d", None, "cannot be read"),
])  # fmt: skip
def test_file_that_cannot_be_read_is_named(folder: Folder, name: str, content: bytes | None, words: str) -> None:
    file = folder.write("listener 1883\npassword_file passwd\ninclude_dir conf.d\n".replace(
        "include_dir conf.d\n", "include_dir conf.d\n" if name == "conf.d" else ""
    ))  # fmt: skip
    place = folder.path / "passwd"
    if content is not None:
        place.write_bytes(content)
    elif name == "passwd":
        place.unlink()
    with pytest.raises(ImportFileError, match=words):
        import_mosquitto(file, "hall")


def test_limits_of_files(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.path / "round").mkdir()
    (folder.path / "round" / "a.conf").write_text(f"include_dir {folder.path}/round\n")
    with pytest.raises(ImportFileError, match="included files"):
        import_mosquitto(folder.write("include_dir round\n"), "hall")
    monkeypatch.setattr(text_file, "FILE_BYTES_MAX", 1 << 20)
    with pytest.raises(ImportFileError, match="larger than"):
        import_mosquitto(folder.write("#" * ((1 << 20) + 1)), "hall")


def test_command_writes_a_private_file_and_reports(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder.write("listener 1883\nallow_anonymous true\nmax_qos 1\nlog_dest syslog\n")
    target = folder.path / "hall.yaml"
    assert run(["import", str(file), "-f", str(target), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(each["outcome"], each["setting"]) for each in answer["items"]] == [("left out", "max_qos")]
    assert answer["counts"] == {"left out": 1, "changed": 0, "imported": 2, "not needed": 1}
    assert target.stat().st_mode & 0o777 == 0o600
    assert [each["kind"] for each in yaml.safe_load_all(target.read_text())] == ["Gateway", "AddressSpace"]
    assert run(["import", str(file), "-f", str(target)]) == 2, "it exists"
    assert run(["import", str(file), "-f", str(target), "--force", "--name", "not a name"]) == 2
    assert "needs corrections" in capsys.readouterr().err
    assert run(["import", str(folder.path / "passwd2"), "-f", str(target)]) == 2


# --- EnMasse ----------------------------------------------------------------------------------------------------------

ENMASSE = """
apiVersion: v1
kind: List
items:
- apiVersion: enmasse.io/v1beta1
  kind: AddressSpace
  metadata: {name: plant, namespace: iot, uid: u1, annotations: {enmasse.io/applied: x}}
  spec:
    type: standard
    plan: standard-unlimited
    authenticationService: {name: standard-authservice, overrides: {realm: x}}
    endpoints: [{name: messaging, service: messaging}]
    connectors:
    - name: remote
      role: route-container
      endpointHosts: [{host: broker.example, port: 5671}]
      idleTimeout: 16000
      tls: {caCert: {value: PEM}}
      credentials: {username: {value: gw}, password: {value: hidden}}
      addresses: [{name: all, pattern: "*"}]
    - name: other
      endpointHosts: [{host: other.example}]
      credentials: {username: {value: gw}, password: {valueFromSecret: {name: secret}}}
  status: {isReady: true}
- apiVersion: enmasse.io/v1beta1
  kind: Address
  metadata: {name: plant.jobs, addressSpace: plant}
  spec:
    address: jobs
    type: queue
    plan: standard-small-queue
    addressSpace: plant
    messageTtl: {minimum: 1000, maximum: 60000}
    messageRedelivery: {maximumDeliveryAttempts: 3}
    subscriptions: {maximum: 9}
    forwarders: [{name: up, remoteAddress: remote/jobs, direction: out}]
- apiVersion: user.enmasse.io/v1beta1
  kind: MessagingUser
  metadata: {name: plant.ann}
  spec:
    username: ann
    authentication: {type: password}
    authorization:
    - {addresses: ["plant/*", "jo*", jobs], operations: [send, recv, delete]}
    - {addresses: ["jo*"], operations: [recv]}
    - {addresses: [7], operations: [send]}
    - {operations: [send, recv, view]}
    - {addresses: "plant/#", operations: [send]}
    - {addresses: [], operations: [recv]}
- apiVersion: user.enmasse.io/v1beta1
  kind: MessagingUser
  metadata: {name: plant.robot}
  spec: {username: robot, authentication: {type: federated, provider: openshift}, authorization: []}
- apiVersion: enmasse.io/v1beta1
  kind: Address
  metadata: {name: offices.mail}
  spec: {address: mail, type: queue}
- {apiVersion: admin.enmasse.io/v1beta2, kind: AddressPlan, metadata: {name: standard-small-queue}}
"""


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    file = tmp_path / "enmasse.yaml"
    file.write_text(ENMASSE)
    return file


def test_resources_of_enmasse(exported: Path) -> None:
    found = import_enmasse(exported)
    whole = "---\n".join(to_yaml(document) for document in found.documents)
    assert KINDS.validate(parse(KINDS, whole, "imported")) == []
    space = specs(found, "AddressSpace")["default"]
    assert space["authenticationService"] == {"name": "standard"}
    remote, other = space["connectors"]
    assert remote == {
        "type": "amqp", "name": "remote", "endpointHosts": [{"host": "broker.example", "port": 5671}],
        "idleTimeout": 16000, "tls": {}, "credentials": {"username": "gw", "password": "hidden"},
    }  # fmt: skip
    assert "credentials" not in other
    jobs = specs(found, "Address")["default.jobs"]
    assert (jobs["messageTtl"], "subscriptions" in jobs) == ({"minimum": 1000, "maximum": 60000}, False)
    assert list(specs(found, "MessagingUser")) == ["default.ann"]
    refused = {each.setting for each in found.notes if each.outcome is LEFT_OUT}
    assert refused == {
        "AddressSpace plant connectors remote tls.caCert", "AddressSpace plant connectors remote addresses",
        "AddressSpace plant connectors other credentials", "Address plant.jobs subscriptions",
        "MessagingUser plant.ann authentication.password", "MessagingUser plant.ann authorization jo*",
        "MessagingUser plant.ann authorization[0].operations[2]", "MessagingUser plant.robot",
        "MessagingUser plant.ann authorization",
        "MessagingUser plant.robot authentication.provider", "MessagingUser plant.robot authentication.type",
        "MessagingUser plant.robot authentication", "Address offices.mail",
    }  # fmt: skip
    assert {each.setting for each in found.notes if each.outcome is NOT_NEEDED} == {"AddressPlan standard-small-queue"}


def test_rule_that_loses_its_addresses_is_for_none(exported: Path) -> None:
    """A rule without addresses would be for every address."""
    rules = specs(import_enmasse(exported), "MessagingUser")["default.ann"]["authorization"]
    assert rules == [
        {"addresses": ["plant/#", "jobs"], "operations": ["send", "recv"]},
        {"addresses": ["7"], "operations": ["send"]},
        {"operations": ["view"]},
    ]


def test_refused_items_of_a_long_list_are_removed_alone(exported: Path) -> None:
    operations = ["send"] * 9 + ["delete", "delete", "recv"]
    exported.write_text(ENMASSE.replace("[send, recv, delete]", f"[{', '.join(operations)}]"))
    rules = specs(import_enmasse(exported), "MessagingUser")["default.ann"]["authorization"]
    assert rules[0]["operations"] == ["send"] * 9 + ["recv"]


def test_one_of_several_spaces_is_named(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported.write_text(ENMASSE + "- {apiVersion: enmasse.io/v1beta1, kind: AddressSpace, metadata: {name: offices}}\n")
    with pytest.raises(ImportFileError, match="several address spaces"):
        import_enmasse(exported)
    assert list(specs(import_enmasse(exported, "offices"), "Address")) == ["default.mail"]
    with pytest.raises(ImportFileError, match="no address space"):
        import_enmasse(exported, "shop")
    target = exported.with_name("out.yaml")
    assert run(["import", str(exported), "-f", str(target), "--space", "plant"]) == 0
    assert "left out" in capsys.readouterr().out
    exported.write_text("{")
    assert run(["import", str(exported), "-f", str(target), "--force"]) == 2


def test_a_registry_of_hono_goes_to_a_hub(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "device-identities.json"
    source.write_text("[]")
    assert run(["import", str(source), "-f", str(tmp_path / "out.yaml")]) == 2
    assert "hub device import" in capsys.readouterr().err
    assert not (tmp_path / "out.yaml").exists()
