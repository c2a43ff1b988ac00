"""Tables of the registry, and their migration from older versions."""

from __future__ import annotations

import enum
import secrets
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn

from bridge.version import VERSION
from cloud.hub.observed import NO_TIME_US
from cloud.hub.registry.faults import RegistryForeign, RegistryLeft, RegistryTooNew
from cloud.hub.version_rank import UNRANKED

SCHEMA_VERSION = 37
"""Version of the tables below; incremented with every change."""

LOWEST_SCHEMA = 20
"""Lowest `SCHEMA_VERSION` of a program that may use a registry with these tables
(``cloud/decisions/0021-schema-changes-expand-then-contract.md``). A change that only adds keeps it: old programs name
the columns that they use, so new columns are nullable. A change that takes something away raises it, one version after
the last program that needs it."""

PARAMETERS_MAX = 900
"""Bound parameters in one statement: SQLite before 3.32 takes 999."""

OLDER_WRITER = ""
"""Writer of commits prepared by schema 3 or older, which had no writers."""


class NameType(sa.types.TypeDecorator[str]):
    """Column of names that gateways choose. PostgreSQL takes no NUL in a text, so a NUL is stored as ``\\0``, and a
    backslash twice."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None or dialect.name != "postgresql":
            return value
        return value.replace("\\", "\\\\").replace("\0", "\\0")

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> str | None:
        if value is None or dialect.name != "postgresql":
            return value  # type: ignore[no-any-return]
        return "\\".join(part.replace("\\0", "\0") for part in value.split("\\\\"))


def _of_known(name: str, *columns: str) -> sa.Index:
    """Return an index of the gateways that are not forgotten."""
    return sa.Index(name, *columns, **_only_where("forgotten_at IS NULL"))


def _only_where(condition: str) -> dict[str, Any]:
    """Return the arguments of an index that has the rows with a condition only."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


metadata = sa.MetaData()

schema_version = sa.Table(
    "schema_version",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("registry_id", sa.String(32), nullable=False),
)
schema_revisions = sa.Table(
    "schema_revisions",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("lowest", sa.Integer, nullable=False),
    sa.Column("made_at", sa.BigInteger, nullable=False),
    sa.Column("program", sa.String(64), nullable=False),
)
registry_marks = sa.Table(
    "registry_marks",
    metadata,
    sa.Column("state", sa.String(16), primary_key=True),
    sa.Column("place", sa.Text, nullable=False),
    sa.Column("made_at", sa.BigInteger, nullable=False),
)
writers = sa.Table(
    "writers",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("starts", sa.BigInteger, nullable=False),
    sa.Column("lake", sa.String(64), nullable=True),
)
hubs = sa.Table(
    "hubs",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("started_at", sa.BigInteger, nullable=False),
    sa.Column("seen_at", sa.BigInteger, nullable=False),
    sa.Column("connections", sa.BigInteger, nullable=False),
    sa.Column("schema", sa.Integer, nullable=True),
)
tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
)
gateways = sa.Table(
    "gateways",
    metadata,
    sa.Column("tenant", sa.String(255), sa.ForeignKey("tenants.name"), primary_key=True),
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("first_seen", sa.BigInteger, nullable=False),
    sa.Column("last_seen", sa.BigInteger, nullable=False),
    sa.Column("connected", sa.Boolean, nullable=False),
    sa.Column("remote", sa.String(255), nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("landed", sa.BigInteger, nullable=False),
    sa.Column("writer", sa.String(32), nullable=True),
    sa.Column("connected_at", sa.BigInteger, nullable=True),
    sa.Column("observed", sa.Text, nullable=True),
    sa.Column("forgotten_at", sa.BigInteger, nullable=True),
    sa.Column("refusing", sa.Boolean, nullable=True, server_default=sa.false()),
    sa.Column("oldest_at", sa.BigInteger, nullable=True, server_default=str(NO_TIME_US)),
    sa.Column("full_at", sa.BigInteger, nullable=True, server_default=str(NO_TIME_US)),
    sa.Column("waiting", sa.BigInteger, nullable=True, server_default="0"),
    sa.Column("judged_at", sa.BigInteger, nullable=True, server_default="0"),
    sa.Column("version", NameType, nullable=True),
    sa.Column("version_rank", sa.BigInteger, nullable=True, server_default=str(UNRANKED)),
    sa.Column("figures_at", sa.BigInteger, nullable=True, server_default="0"),
    sa.Index("gateways_forgotten", "forgotten_at", **_only_where("forgotten_at IS NOT NULL")),
    _of_known("gateways_by_danger", "connected", "refusing", "oldest_at", "tenant", "name"),
    _of_known("gateways_by_room", "connected", "full_at", "tenant", "name"),
    _of_known("gateways_by_name", "name", "tenant"),
    _of_known("tenant_gateways_by_danger", "tenant", "connected", "refusing", "oldest_at", "name"),
    _of_known("tenant_gateways_by_room", "tenant", "connected", "full_at", "name"),
    _of_known("gateways_by_version", "version_rank", "version", "tenant", "name"),
)
"""`refusing`, `oldest_at`, `full_at`, `waiting`, `version` and `version_rank` are figures of `observed`
(`cloud.hub.observed.DangerFigures`), in columns that have an order. They hold while `figures_at` is `last_seen`: a
program that does not know them changes only that one. `judged_at` is the same without the version, for programs of the
schema versions 31 to 35, which have no other. But for `version` they are never null: an older program that adds a row
gets their defaults."""
marks = sa.Table(
    "marks",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("gateway", sa.String(255), primary_key=True),
    sa.Column("epoch", NameType, primary_key=True),
    sa.Column("address", NameType, primary_key=True),
    sa.Column("mark", sa.BigInteger, nullable=False),
    sa.Column("spans", sa.LargeBinary, nullable=False),
    sa.Column("checksum", sa.BigInteger, nullable=True),
    sa.Column("closed", sa.BigInteger, nullable=True),
)
ledgered = sa.Table(
    "ledgered",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("gateway", sa.String(255), primary_key=True),
    sa.Column("epoch", NameType, primary_key=True),
    sa.Column("address", NameType, primary_key=True),
    sa.Column("first", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last", sa.BigInteger, primary_key=True, autoincrement=False),
)
lineages = sa.Table(
    "lineages",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("gateway", sa.String(255), primary_key=True),
    sa.Column("epoch", NameType, primary_key=True),
    sa.Column("openings", sa.LargeBinary, nullable=False),
    sa.Column("ends", sa.LargeBinary, nullable=True),
)
commits = sa.Table(
    "commits",
    metadata,
    sa.Column("writer", sa.String(32), primary_key=True),
    sa.Column("table_name", sa.String(64), primary_key=True),
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=True),
    sa.Column("moves", sa.LargeBinary, key="ranges", nullable=False),
    sa.Column("reached", sa.LargeBinary, nullable=True),
    sa.Index("commits_state", "state"),
)
tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("secret", sa.LargeBinary, nullable=False),
    sa.Column("tenant", sa.String(255), nullable=False),
    sa.Column("gateway", sa.String(255), nullable=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
    sa.Column("revoked_at", sa.BigInteger, nullable=True),
    sa.Column("spent_at", sa.BigInteger, nullable=True),
    sa.Column("serial", sa.String(40), nullable=True),
    sa.Column("labels", sa.Text, nullable=True),
)
labels = sa.Table(
    "labels",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("gateway", sa.String(255), primary_key=True),
    sa.Column("key", sa.String(63), primary_key=True),
    sa.Column("value", sa.String(63), nullable=False),
)
certificates = sa.Table(
    "certificates",
    metadata,
    sa.Column("serial", sa.String(40), primary_key=True),
    sa.Column("tenant", sa.String(255), nullable=False),
    sa.Column("gateway", sa.String(255), nullable=False),
    sa.Column("key_id", sa.LargeBinary, nullable=False),
    sa.Column("begins_at", sa.BigInteger, nullable=False),
    sa.Column("ends_at", sa.BigInteger, nullable=False),
    sa.Column("revoked_at", sa.BigInteger, nullable=True, index=True),
    sa.Column("pem", sa.Text, nullable=False),
    sa.Index("certificates_of", "tenant", "gateway"),
)
attestations = sa.Table(
    "attestations",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("gateway", sa.String(255), primary_key=True),
    sa.Column("told_at", sa.BigInteger, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
)
configurations = sa.Table(
    "configurations",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("gateway", sa.String(255), primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("made_at", sa.BigInteger, nullable=False),
    sa.Column("made_by", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("signature", sa.Text, nullable=False),
    sa.Column("rollout", sa.String(32), nullable=True),
    sa.Column("confirmed_at", sa.BigInteger, nullable=True),
    sa.Column("failure", sa.Text, nullable=True),
    sa.Column("selector", sa.String(255), nullable=True, index=True),
    sa.Column("decided_at", sa.BigInteger, nullable=True),
    sa.Column("repeats", sa.BigInteger, nullable=True),
    sa.Column("signer", sa.String(64), nullable=True),
)
UNSIGNED = ""
"""Signature of a configuration that the authority's process has not signed yet; `signer` names the authority."""
sa.Index(
    "configurations_unsigned",
    configurations.c.signer,
    sqlite_where=configurations.c.signer.is_not(None),
    postgresql_where=configurations.c.signer.is_not(None),
)
LATE_SIGNATURES = 24
"""First `SCHEMA_VERSION` of hubs that hold back a configuration until it is signed."""
authorities = sa.Table(
    "authorities",
    metadata,
    sa.Column("fingerprint", sa.String(64), primary_key=True),
    sa.Column("seen_at", sa.BigInteger, nullable=False),
    sa.Column("revocations", sa.LargeBinary, nullable=True),
    sa.Column("number", sa.BigInteger, nullable=False),
)
signature_requests = sa.Table(
    "signature_requests",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("authority", sa.String(64), nullable=False),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("made_at", sa.BigInteger, nullable=False),
    sa.Column("answered_at", sa.BigInteger, nullable=True, index=True),
    sa.Column("answer", sa.Text, nullable=True),
    sa.Column("refusal", sa.Text, nullable=True),
)
selectors = sa.Table(
    "selectors",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("selector", sa.String(255), primary_key=True),
    sa.Column("decided_at", sa.BigInteger, nullable=False),
    sa.Column("made_by", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("resources", sa.Text, nullable=False),
    sa.Column("confirm_s", sa.Float, nullable=False),
    sa.Column("restart", sa.Boolean, nullable=False),
    sa.Column("rollout", sa.String(32), nullable=True),
)
configured = sa.Table(
    "configured",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("gateway", sa.String(255), primary_key=True),
    sa.Column("wanted", sa.BigInteger, nullable=False),
    sa.Column("changed_at", sa.BigInteger, nullable=False, index=True),
    sa.Column("report", sa.Text, nullable=True),
    sa.Column("reported_at", sa.BigInteger, nullable=True),
)
rollouts = sa.Table(
    "rollouts",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("tenant", sa.String(255), nullable=False),
    sa.Column("made_at", sa.BigInteger, nullable=False),
    sa.Column("made_by", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("resources", sa.Text, nullable=False),
    sa.Column("confirm_s", sa.Float, nullable=False),
    sa.Column("restart", sa.Boolean, nullable=False),
    sa.Column("soak_s", sa.Float, nullable=False),
    sa.Column("away_s", sa.Float, nullable=False),
    sa.Column("failures_max", sa.Integer, nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("selector", sa.String(255), nullable=True),
    sa.Column("stages", sa.Text, nullable=True),
)
rollout_members = sa.Table(
    "rollout_members",
    metadata,
    sa.Column("rollout", sa.String(32), sa.ForeignKey("rollouts.id"), primary_key=True),
    sa.Column("gateway", sa.String(255), primary_key=True),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=True),
    sa.Column("why", sa.Text, nullable=False),
)
commands = sa.Table(
    "commands",
    metadata,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("id", sa.String(32), nullable=False, unique=True),
    sa.Column("tenant", sa.String(255), nullable=False),
    sa.Column("gateway", sa.String(255), nullable=False),
    sa.Column("device", sa.String(255), nullable=False),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("content_type", sa.String(255), nullable=True),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sa.Column("correlation_id", NameType, nullable=True),
    sa.Column("reply_to", NameType, nullable=True),
    sa.Column("wants_response", sa.Boolean, nullable=False),
    sa.Column("sent_by", sa.String(255), nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reason", NameType, nullable=False),
    sa.Column("changed_at", sa.BigInteger, nullable=False),
    sa.Column("response_status", sa.Integer, nullable=True),
    sa.Column("response_type", sa.String(255), nullable=True),
    sa.Column("response", sa.LargeBinary, nullable=True),
    sa.Column("responded_at", sa.BigInteger, nullable=True),
    sa.Column("online", sa.Boolean, nullable=True),
    sa.Column("reason_code", sa.String(32), nullable=True),
    sa.Column("sent_to", sa.String(255), nullable=True),
    sa.Column("moves", sa.Integer, nullable=True),
    sa.Column("moved", sa.BigInteger, nullable=True),
    sa.Index("commands_open", "state", "tenant", "gateway"),
    sa.Index("commands_following", "tenant", "device", "state", **_only_where("moves IS NOT NULL")),
    sa.Index("commands_moving", "state", "tenant", "gateway", "device", **_only_where("moves IS NOT NULL")),
    sa.Index("commands_moved", "moved", **_only_where("moved IS NOT NULL")),
    sa.Index("commands_changed", "changed_at"),
)
sa.Index(
    "commands_online",
    commands.c.state,
    commands.c.expires_at,
    sqlite_where=commands.c.online.is_(True),
    postgresql_where=commands.c.online.is_(True),
)
command_keys = sa.Table(
    "command_keys",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("sent_by", sa.String(255), primary_key=True),
    sa.Column("key", NameType, primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("command", sa.String(32), nullable=False),
    sa.Column("kept_until", sa.BigInteger, nullable=False, index=True),
)
alerts = sa.Table(
    "alerts",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("hub", sa.String(32), nullable=False),
    sa.Column("rule", sa.String(64), nullable=False),
    sa.Column("severity", sa.String(16), nullable=False),
    sa.Column("tenant", sa.String(255), nullable=False),
    sa.Column("selector", sa.String(255), nullable=False),
    sa.Column("gateway", sa.String(255), nullable=False),
    sa.Column("detail", NameType, nullable=False),
    sa.Column("what", NameType, nullable=False),
    sa.Column("next_step", sa.Text, nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),
    sa.Column("fired_at", sa.BigInteger, nullable=False),
    sa.Column("gateways", sa.BigInteger, nullable=False),
    sa.Column("muted_until", sa.BigInteger, nullable=True),
    sa.Column("acknowledged_at", sa.BigInteger, nullable=True),
    sa.Column("acknowledged_by", sa.String(255), nullable=False),
    sa.Column("note", NameType, nullable=False),
    sa.Column("notified_at", sa.BigInteger, nullable=True),
    sa.Column("resolved_at", sa.BigInteger, nullable=True),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Index("alerts_fired", "fired_at", "id"),
    sa.Index("alerts_resolved", "resolved_at"),
)
alert_gateways = sa.Table(
    "alert_gateways",
    metadata,
    sa.Column("alert", sa.String(32), sa.ForeignKey("alerts.id"), primary_key=True),
    sa.Column("gateway", sa.String(255), primary_key=True),
    sa.Column("since", sa.BigInteger, nullable=False),
    sa.Column("over_at", sa.BigInteger, nullable=True),
)
alert_rules = sa.Table(
    "alert_rules",
    metadata,
    sa.Column("rule", sa.String(64), primary_key=True),
    sa.Column("enabled", sa.Boolean, nullable=False),
    sa.Column("for_s", sa.BigInteger, nullable=True),
    sa.Column("severity", sa.String(16), nullable=True),
    sa.Column("selector", sa.String(255), nullable=True),
    sa.Column("changed_at", sa.BigInteger, nullable=False),
    sa.Column("changed_by", sa.String(255), nullable=False),
)
alert_evaluations = sa.Table(
    "alert_evaluations",
    metadata,
    sa.Column("lake", sa.String(64), primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
)
mutes = sa.Table(
    "mutes",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("tenant", sa.String(255), nullable=False),
    sa.Column("rule", sa.String(64), nullable=False),
    sa.Column("selector", sa.String(255), nullable=False),
    sa.Column("gateway", sa.String(255), nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False, index=True),
    sa.Column("reason", NameType, nullable=False),
    sa.Column("made_at", sa.BigInteger, nullable=False),
    sa.Column("made_by", sa.String(255), nullable=False),
)
receivers = sa.Table(
    "receivers",
    metadata,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("severity", sa.String(16), nullable=False),
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("secret", sa.Text, nullable=False),
    sa.Column("changed_at", sa.BigInteger, nullable=False),
    sa.Column("changed_by", sa.String(255), nullable=False),
    sa.Column("delivered_at", sa.BigInteger, nullable=True),
    sa.Column("failed_at", sa.BigInteger, nullable=True),
    sa.Column("failure", NameType, nullable=False),
)
deliveries = sa.Table(
    "deliveries",
    metadata,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("hub", sa.String(32), nullable=False),
    sa.Column("receiver", sa.String(63), nullable=False),
    sa.Column("alert", sa.String(32), nullable=False),
    sa.Column("event", sa.String(16), nullable=False),
    sa.Column("made_at", sa.BigInteger, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("due_at", sa.BigInteger, nullable=False, index=True),
)
users = sa.Table(
    "users",
    metadata,
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("document", sa.Text, nullable=False),
)
user_revisions = sa.Table(
    "user_revisions",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("decoy", sa.LargeBinary, nullable=False),
)
views = sa.Table(
    "views",
    metadata,
    sa.Column("user", sa.String(255), primary_key=True),
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("page", sa.String(32), nullable=False),
    sa.Column("query", sa.Text, nullable=False),
)
request_keys = sa.Table(
    "request_keys",
    metadata,
    sa.Column("user", NameType, primary_key=True),
    sa.Column("key", NameType, primary_key=True),
    sa.Column("tenant", NameType, nullable=False, index=True),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False, index=True),
    sa.Column("status", sa.Integer, nullable=True),
    sa.Column("body", sa.LargeBinary, nullable=True),
)
BYTEWISE_NAME = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")
"""Type of ASCII names that are searched by their beginning: PostgreSQL compares them byte by byte, as SQLite does."""
BYTEWISE_TARGET = sa.String(260).with_variant(sa.String(260, collation="C"), "postgresql")
"""Type of a gateway's name or the text of a selector, with a letter before it (`device_targets`)."""

device_tenants = sa.Table(
    "device_tenants",
    metadata,
    sa.Column("tenant", BYTEWISE_NAME, primary_key=True),
    sa.Column("owner", sa.String(255), nullable=False, index=True),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("last_revision", sa.BigInteger, nullable=False),
    sa.Column("devices", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
    sa.Column("updated_by", NameType, nullable=False),
    sa.Column("tracked_revision", sa.BigInteger, nullable=True),
    sa.Column("dropped_revision", sa.BigInteger, nullable=True),
    sa.Column("tracking", sa.String(32), nullable=True),
)
trust_anchors = sa.Table(
    "trust_anchors",
    metadata,
    sa.Column("subject", NameType, primary_key=True),
    sa.Column("tenant", BYTEWISE_NAME, primary_key=True),
    sa.Column("anchor_group", NameType, nullable=True),
    sa.Index("trust_anchors_of", "tenant"),
)
devices = sa.Table(
    "devices",
    metadata,
    sa.Column("tenant", BYTEWISE_NAME, primary_key=True),
    sa.Column("device", BYTEWISE_NAME, primary_key=True),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("credentials_revision", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
    sa.Column("updated_by", NameType, nullable=False),
)
device_links = sa.Table(
    "device_links",
    metadata,
    sa.Column("tenant", BYTEWISE_NAME, primary_key=True),
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("name", BYTEWISE_NAME, primary_key=True),
    sa.Column("device", BYTEWISE_NAME, primary_key=True),
    sa.Index("device_links_of", "tenant", "device"),
)
device_credentials = sa.Table(
    "device_credentials",
    metadata,
    sa.Column("tenant", BYTEWISE_NAME, primary_key=True),
    sa.Column("type", sa.String(32), primary_key=True),
    sa.Column("auth_id", NameType, primary_key=True),
    sa.Column("device", BYTEWISE_NAME, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Index("device_credentials_of", "tenant", "device"),
)
device_targets = sa.Table(
    "device_targets",
    metadata,
    sa.Column("tenant", BYTEWISE_NAME, primary_key=True),
    sa.Column("target", BYTEWISE_TARGET, primary_key=True),
    sa.Column("device", BYTEWISE_NAME, primary_key=True),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("present", sa.Boolean, nullable=False),
    sa.Index("device_targets_of", "tenant", "device"),
    sa.Index("device_targets_changed", "tenant", "target", "revision", "device"),
    sa.Index("device_targets_gone", "tenant", "present", "revision"),
)
device_selectors = sa.Table(
    "device_selectors",
    metadata,
    sa.Column("tenant", BYTEWISE_NAME, primary_key=True),
    sa.Column("target", BYTEWISE_TARGET, primary_key=True),
)
local_devices = sa.Table(
    "local_devices",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("gateway", BYTEWISE_NAME, primary_key=True),
    sa.Column("device", BYTEWISE_NAME, primary_key=True),
    sa.Index("local_devices_by_name", "tenant", "device", "gateway"),
)
local_device_lists = sa.Table(
    "local_device_lists",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("gateway", sa.String(255), primary_key=True),
    sa.Column("position", sa.String(64), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
)
tenant_quotas = sa.Table(
    "tenant_quotas",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("document", sa.Text, nullable=True),
    sa.Column("number", sa.BigInteger, nullable=False),
)
tenant_removals = sa.Table(
    "tenant_removals",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("begun_at", sa.BigInteger, nullable=False),
    sa.Column("begun_by", NameType, nullable=False),
    sa.Column("forced", sa.Boolean, nullable=False),
    sa.Column("ended_at", sa.BigInteger, nullable=True),
    sa.Column("phase", sa.Integer, nullable=False),
    sa.Column("position", sa.String(255), nullable=False),
    sa.Column("changed", sa.Boolean, nullable=False),
    sa.Column("holder", sa.String(32), nullable=True),
    sa.Column("held_until", sa.BigInteger, nullable=True),
)
TENANTS_END = 32
"""First `SCHEMA_VERSION` of hubs that take part in the removal of a tenant."""
usage = sa.Table(
    "usage",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("day", sa.Integer, primary_key=True, autoincrement=False, index=True),
    sa.Column("messages", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)
artefacts = sa.Table(
    "artefacts",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("version", sa.String(64), primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("image", sa.String(32), nullable=False),
    sa.Column("envelope", sa.LargeBinary, nullable=False),
    sa.Column("key_id", sa.String(16), nullable=False),
    sa.Column("added_at", sa.BigInteger, nullable=False),
    sa.Column("added_by", sa.String(255), nullable=False),
    sa.Column("stored_at", sa.BigInteger, nullable=True),
    sa.Column("removing", sa.Boolean, nullable=False),
)
artefact_names = sa.Table(
    "artefact_names",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
)
artefact_keys = sa.Table(
    "artefact_keys",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("pem", sa.Text, nullable=False),
    sa.Column("label", sa.String(64), nullable=False),
    sa.Column("added_at", sa.BigInteger, nullable=False),
    sa.Column("added_by", sa.String(255), nullable=False),
)
device_updates = sa.Table(
    "device_updates",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("version", sa.String(64), primary_key=True),
    sa.Column("device", NameType, primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("gateway", NameType, nullable=False),
    sa.Column("stream", sa.String(32), nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("reported_at", sa.BigInteger, nullable=False),
    sa.Column("changed_at", sa.BigInteger, nullable=False),
    sa.Column("seen", sa.Text, nullable=True),
    sa.Column("failure", sa.String(64), nullable=True),
    sa.Column("failure_reason", sa.Text, nullable=True),
    sa.Column("failure_at", sa.BigInteger, nullable=True),
    sa.Column("progress", sa.String(64), nullable=True),
    sa.Column("progress_at", sa.BigInteger, nullable=True),
    sa.Index("device_updates_by_device", "tenant", "device"),
    sa.Index("device_updates_by_state", "tenant", "state", "name", "version", "device"),
)
campaigns = sa.Table(
    "campaigns",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("tenant", sa.String(255), nullable=False),
    sa.Column("made_at", sa.BigInteger, nullable=False),
    sa.Column("made_by", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("devices_of", sa.String(255), nullable=False),
    sa.Column("selector", sa.Text, nullable=True),
    sa.Column("soak_s", sa.Float, nullable=False),
    sa.Column("away_s", sa.Float, nullable=False),
    sa.Column("failures_max", sa.Integer, nullable=False),
    sa.Column("enough_percent", sa.Integer, nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("stages", sa.Text, nullable=False),
    sa.Column("ends_at", sa.BigInteger, nullable=True),
    sa.Column("closed", sa.Boolean, nullable=False),
    sa.Column("marked_to", sa.String(255), nullable=True),
    sa.Index("campaigns_of", "tenant", "made_at"),
)
campaign_members = sa.Table(
    "campaign_members",
    metadata,
    sa.Column("campaign", sa.String(32), primary_key=True),
    sa.Column("device", sa.String(255), primary_key=True),
    sa.Column("tenant", sa.String(255), nullable=False),
    sa.Column("devices_of", sa.String(255), nullable=False),
    sa.Column("wave", sa.Integer, nullable=False),
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),
    sa.Column("sent_at", sa.BigInteger, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("loading_at", sa.BigInteger, nullable=True),
    sa.Column("seen_report", sa.String(64), nullable=True),
    sa.Column("seen_failure", sa.String(64), nullable=True),
    sa.Column("seen_progress", sa.String(64), nullable=True),
    sa.Index("campaign_members_by_phase", "campaign", "wave", "phase"),
    sa.Index("campaign_members_by_device", "devices_of", "device"),
)
taps = sa.Table(
    "taps",
    metadata,
    sa.Column("lake", sa.String(64), primary_key=True),
    sa.Column("table_name", sa.String(64), primary_key=True),
    sa.Column("topic", sa.String(255), primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("holder", sa.String(32), nullable=True),
    sa.Column("seen_at", sa.BigInteger, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("newest", sa.BigInteger, nullable=False),
    sa.Column("waiting_since", sa.BigInteger, nullable=True),
    sa.Column("records", sa.BigInteger, nullable=False),
    sa.Column("trouble", NameType, nullable=False),
)
sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("user", NameType, nullable=False, index=True),
    sa.Column("way", sa.Text, nullable=False),
    sa.Column("secret", sa.String(64), nullable=False),
    sa.Column("rules", sa.Text, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=True),
    sa.Column("stays", sa.Boolean, nullable=False),
    sa.Column("opened_at", sa.BigInteger, nullable=False),
    sa.Column("used_at", sa.BigInteger, nullable=False),
    sa.Column("sealed", sa.LargeBinary, nullable=True),
    sa.Column("renewing_until", sa.BigInteger, nullable=True),
    sa.Column("token_subject", NameType, nullable=True),
    sa.Column("token_session", NameType, nullable=True),
    sa.Column("token_issued_at", sa.BigInteger, nullable=True),
)
sign_outs = sa.Table(
    "sign_outs",
    metadata,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("issuer", sa.Text, nullable=False),
    sa.Column("subject", NameType, nullable=False),
    sa.Column("session", NameType, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
)
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False, index=True),
    sa.Column("user", NameType, nullable=False),
    sa.Column("remote", sa.String(255), nullable=False),
    sa.Column("tenant", NameType, nullable=False),
    sa.Column("action", sa.String(64), nullable=False),
    sa.Column("subject", NameType, nullable=False),
    sa.Column("before", NameType, nullable=True),
    sa.Column("after", NameType, nullable=True),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("error", NameType, nullable=False),
    sa.Index("audit_of_tenant", "tenant", "number"),
    sqlite_autoincrement=True,
)
events = sa.Table(
    "events",
    metadata,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False, index=True),
    sa.Column("type", sa.String(64), nullable=False),
    sa.Column("tenant", sa.String(255), nullable=False),
    sa.Column("gateway", sa.String(255), nullable=False),
    sa.Column("subject", NameType, nullable=False),
    sa.Column("data", NameType, nullable=False),
    sa.Index("events_of_tenant", "tenant", "number"),
    sqlite_autoincrement=True,
)
webhooks = sa.Table(
    "webhooks",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("tenant", sa.String(255), nullable=False, index=True),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("types", sa.Text, nullable=False),
    sa.Column("gateways", sa.Text, nullable=False),
    sa.Column("selector", sa.String(255), nullable=False),
    sa.Column("secret", sa.Text, nullable=False),
    sa.Column("older_secret", sa.Text, nullable=True),
    sa.Column("older_until", sa.BigInteger, nullable=True),
    sa.Column("made_at", sa.BigInteger, nullable=False),
    sa.Column("changed_at", sa.BigInteger, nullable=False),
    sa.Column("changed_by", NameType, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("holder", sa.String(32), nullable=True),
    sa.Column("reached", sa.BigInteger, nullable=False),
    sa.Column("gap_told", sa.BigInteger, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("due_at", sa.BigInteger, nullable=False),
    sa.Column("failing_since", sa.BigInteger, nullable=True),
    sa.Column("failure", NameType, nullable=False),
    sa.Column("delivered_at", sa.BigInteger, nullable=True),
)
event_gaps = sa.Table(
    "event_gaps",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
)
problems = sa.Table(
    "problems",
    metadata,
    sa.Column("tenant", sa.String(255), primary_key=True),
    sa.Column("gateway", sa.String(255), primary_key=True),
    sa.Column("hub", sa.String(32), primary_key=True),
    sa.Column("digest", sa.String(32), primary_key=True),
    sa.Column("code", NameType, nullable=False),
    sa.Column("severity", sa.String(16), nullable=False),
    sa.Column("what", NameType, nullable=False),
    sa.Column("next_step", NameType, nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),
    sa.Index("problems_of_hub", "hub"),
    sa.Index("problems_by_code", "code", "tenant", "gateway", "hub", "digest", "severity", "since"),
    sa.Index("problems_by_severity", "severity", "tenant", "gateway"),
)


class RegistryState(enum.Enum):
    """Mark of a registry that no hub may use."""

    ARRIVING = "arriving"
    """A restore or a move into it has not ended."""
    LEFT = "left"
    """A move to another place has ended."""


def open_schema(tx: sa.Connection) -> str:
    """Create or migrate the tables; return the registry's id.

    Raises `RegistryForeign`, `RegistryTooNew`, `RegistryLeft`.
    """
    there = set(sa.inspect(tx).get_table_names())
    found = _known(tx, there)
    if found is None:
        metadata.create_all(tx)
        registry_id = secrets.token_hex(16)
        tx.execute(schema_version.insert().values(version=SCHEMA_VERSION, registry_id=registry_id))
        record_revision(tx)
        return registry_id
    version, registry_id = found
    if version < SCHEMA_VERSION:
        _migrate(tx, version)
        tx.execute(schema_version.update().values(version=SCHEMA_VERSION))
        record_revision(tx)
    return registry_id


def record_revision(tx: sa.Connection) -> None:
    """Record that the tables have this program's version, and the lowest program that may use them."""
    made_at = time.time_ns() // 1_000
    removed = tx.execute(sa.select(tenant_removals.c.tenant).limit(1)).first() is not None
    lowest = max(LOWEST_SCHEMA, TENANTS_END) if removed else LOWEST_SCHEMA
    values = {"version": SCHEMA_VERSION, "lowest": lowest, "made_at": made_at, "program": VERSION}
    tx.execute(schema_revisions.delete().where(schema_revisions.c.version == SCHEMA_VERSION))
    tx.execute(schema_revisions.insert().values(values))


def require_programs(tx: sa.Connection, version: int) -> None:
    """Let no program with an older version open this registry from now on."""
    tx.execute(schema_revisions.update().where(schema_revisions.c.lowest < version).values(lowest=version))


def additions(tx: sa.Connection) -> list[str]:
    """Return what a migration adds, for people: tables, columns and indexes."""
    inspected = sa.inspect(tx)
    there = set(inspected.get_table_names())
    found: list[str] = []
    for table in metadata.sorted_tables:
        if table.name not in there:
            found.append(f"table {table.name}")
            continue
        columns = {column["name"] for column in inspected.get_columns(table.name)}
        indexes = {index["name"] for index in inspected.get_indexes(table.name)}
        found += [f"column {table.name}.{column.name}" for column in table.columns if column.name not in columns]
        found += [f"index {index.name}" for index in table.indexes if index.name not in indexes]
    return found


def mark(tx: sa.Connection, state: RegistryState, place: str) -> None:
    """Mark a registry, so that no hub uses it."""
    made_at = time.time_ns() // 1_000
    tx.execute(registry_marks.insert().values(state=state.value, place=place, made_at=made_at))


def state_of(tx: sa.Connection) -> tuple[RegistryState | None, str] | None:
    """Return mark and id of a registry; None for an empty database. Raises `RegistryForeign`."""
    there = set(sa.inspect(tx).get_table_names())
    found = _version(tx, there)
    if found is None:
        return None
    row = tx.execute(sa.select(registry_marks.c.state)).first() if registry_marks.name in there else None
    return (None if row is None else RegistryState(row.state)), found[1]


def version_of(tx: sa.Connection) -> int | None:
    """Return the schema version of a registry without changing it; None for an empty database.

    Raises `RegistryForeign`, `RegistryTooNew`, `RegistryLeft`.
    """
    found = _known(tx, set(sa.inspect(tx).get_table_names()))
    return None if found is None else found[0]


def _known(tx: sa.Connection, there: set[str]) -> tuple[int, str] | None:
    """Return `_version` of a registry that this program may use. Raises `RegistryForeign`, `RegistryTooNew`,
    `RegistryLeft`."""
    found = _version(tx, there)
    if registry_marks.name in there:
        require_unmarked(tx)
    if found is not None and found[0] > SCHEMA_VERSION and _lowest(tx, there, found[0]) > SCHEMA_VERSION:
        raise RegistryTooNew(
            f"the registry has schema version {found[0]}, this program knows {SCHEMA_VERSION}: "
            "a newer version made it; use that version"
        )
    return found


def require_unmarked(tx: sa.Connection) -> None:
    """Check that hubs may use the registry. Raises `RegistryLeft`."""
    row = tx.execute(sa.select(registry_marks)).first()
    if row is not None and row.state == RegistryState.LEFT.value:
        raise RegistryLeft(f"the registry was moved to {row.place}: start the hub with that one")
    if row is not None:
        raise RegistryLeft("a restore into the registry, or a move, was interrupted: repeat the command")


def _lowest(tx: sa.Connection, there: set[str], version: int) -> int:
    """Return the lowest version of a program that may use a registry of this version."""
    if schema_revisions.name not in there:
        return version
    query = sa.select(schema_revisions.c.lowest).where(schema_revisions.c.version == version)
    found = tx.execute(query).scalar_one_or_none()
    return version if found is None else int(found)


def _version(tx: sa.Connection, there: set[str]) -> tuple[int, str] | None:
    """Return schema version and id of the registry; None for an empty database. Raises `RegistryForeign`."""
    foreign = sorted(there - set(metadata.tables))
    if schema_version.name not in there:
        if there and (foreign or _has_rows(tx, there)):
            raise _foreign(foreign or sorted(there))
        return None  # tables without a version: an older program was stopped while it created them
    if {column["name"] for column in sa.inspect(tx).get_columns(schema_version.name)} != set(schema_version.c.keys()):
        raise _foreign([schema_version.name])
    row = tx.execute(sa.select(schema_version.c.version, schema_version.c.registry_id)).one_or_none()
    return None if row is None else (row[0], row[1])


def _has_rows(tx: sa.Connection, tables: set[str]) -> bool:
    return any(tx.execute(sa.select(sa.literal(1)).select_from(sa.table(name)).limit(1)).first() for name in tables)


def _foreign(tables: list[str]) -> RegistryForeign:
    named = ", ".join(tables[:3]) + (", …" if len(tables) > 3 else "")
    return RegistryForeign(
        f"the database has tables of another program ({named}); give the registry a database of its own"
    )


def _migrate(tx: sa.Connection, version: int) -> None:
    """Add missing tables, columns and indexes. Version 4 added the writer to the key of commits."""
    before = [table for table in metadata.sorted_tables if sa.inspect(tx).has_table(table.name)]
    if version < 4:
        tx.execute(sa.text("ALTER TABLE commits RENAME TO commits_before"))
        before.remove(commits)
    metadata.create_all(tx)
    for table in before:
        there = {column["name"] for column in sa.inspect(tx).get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                tx.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {CreateColumn(column).compile(tx.engine)}"))
        for index in table.indexes:
            index.create(tx, checkfirst=True)
    if version < 4:
        _copy_commits(tx)
    if version < 16:
        _mark_rollbacks(tx)
    if version < 31:  # it has all gateways that are not forgotten, so that SQLite takes it for any list of them
        tx.execute(sa.text("DROP INDEX IF EXISTS ix_gateways_forgotten_at"))
    if version < 36:  # `problems_by_code` begins with the same column
        tx.execute(sa.text("DROP INDEX IF EXISTS ix_problems_code"))


def _mark_rollbacks(tx: sa.Connection) -> None:
    """Mark the roll-backs of older programs, which only the note tells."""
    mine = (configurations.c.repeats.is_(None), configurations.c.note.like("back to version %"))
    key = (configurations.c.tenant, configurations.c.gateway, configurations.c.version)
    for *at, note in tx.execute(sa.select(*key, configurations.c.note).where(*mine)).all():
        number = note.removeprefix("back to version ")
        if number.isascii() and number.isdigit() and int(number) < at[2]:
            same = (column == value for column, value in zip(key, at, strict=True))
            tx.execute(configurations.update().where(*same).values(repeats=int(number)))


def _copy_commits(tx: sa.Connection) -> None:
    kept = [column for column in commits.columns if column.key not in ("writer", "reached")]
    older = sa.table("commits_before", *(sa.column(column.name) for column in kept))
    columns = [commits.c.writer, *kept]
    rows = sa.select(sa.literal(OLDER_WRITER), *(older.c[c.name] for c in columns[1:]))
    tx.execute(commits.insert().from_select(columns, rows))
    tx.execute(sa.text("DROP TABLE commits_before"))
