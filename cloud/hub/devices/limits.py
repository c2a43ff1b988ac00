"""Limits of the device registry, with unit and reason. `TENANT_DEVICES_MAX` is in `cloud.hub.limits`."""

from __future__ import annotations

from typing import Final

DEVICE_BYTES_MAX: Final = 16 * 1024
"""Bytes of the registration of a device. Hono's registry takes 2 KiB; a million of the largest are 16 GiB."""

CREDENTIALS_BYTES_MAX: Final = 64 * 1024
"""Bytes of the credentials of a device in one request: ten certificates, and passwords."""

TENANT_BYTES_MAX: Final = 256 * 1024
"""Bytes of the document of a tenant: `TRUST_ANCHORS_MAX` authorities with their certificates."""

DOCUMENT_DEPTH_MAX: Final = 16
"""Levels of lists and mappings in a document. SQLite reads no JSON of more than 1 000, and none deeper is needed."""

NAME_CHARACTERS_MAX: Final = 255
"""Characters in the id of a device or tenant, and in the name of a group: width of the registry's columns."""

LINKS_MAX: Final = 100
"""Entries in each of `via`, `viaGroups`, `memberOf` and `authorities`."""

CREDENTIALS_MAX: Final = 10
"""Credentials of a device: some of each type. Each is a row that gateways have to store too."""

SECRETS_MAX: Final = 4
"""Secrets of one credential: as many as a user of a gateway may have."""

TRUST_ANCHORS_MAX: Final = 20
"""Certificate authorities that a tenant trusts."""

OWNED_TENANTS_MAX: Final = 100
"""Tenants of devices that belong to one tenant of the hub."""

PAGE_SIZE: Final = 30
"""Default rows of a page: that of Hono."""

PAGE_SIZE_MAX: Final = 200
"""Most rows of a page: that of Hono."""

PAGE_OFFSET_MAX: Final = 1_000_000
"""Most rows before a page; the database counts them one by one. `Link` of an answer leads to the next page at once."""

SEARCH_TERMS_MAX: Final = 8
"""Filters, and fields of the order, in one search: each reads every document again."""

SEARCH_TEXT_CHARACTERS_MAX: Final = 1_024
"""Characters of one filter."""

FOLLOW_INTERVAL_S: Final = 2.0
"""Seconds between two looks for changed devices: two short queries, for all gateways together."""

REFUSED_REST_S: Final = 60.0
"""Seconds that a gateway gets no page after it has refused one, or could not store it; doubled with each in a row."""

REST_S_MAX: Final = 3_600.0
"""Longest rest of a gateway that stores no pages: each costs its uplink up to 256 KiB."""

UPKEEP_INTERVAL_S: Final = 600.0
"""Seconds between two looks for devices that an older program has changed, and for too many tombstones."""

WAITING_MAX: Final = 200
"""Requests that wait for the registry at one hub, of reading and of changing ones each; more are told to try again."""

PAGES_AT_ONCE_MAX: Final = 48
"""Gateways that a hub makes pages for at a time: three turns of the authority's process, which so never waits for the
hub. Pages share `SIGNATURES_WAITED_MAX` requests with certificates."""

UNSIGNED_REST_S: Final = 10.0
"""Seconds that a hub requests no page after the authority's process has not signed one. It then requests one at a time
until it gets one, so an authority that is away costs a request in 40 s."""
