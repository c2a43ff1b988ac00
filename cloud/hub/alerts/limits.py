"""Limits of alerts, with unit and reason."""

from __future__ import annotations

from typing import Final

EVALUATION_INTERVAL_S: Final = 10.0
"""Interval of evaluating the rules, as Prometheus' usual one is 15 s to 60 s; 10 000 gateways take 60 ms of it."""

EVALUATION_PAUSE_S: Final = 1.0
"""Pause before the rules are evaluated again for changes, which come in bursts from a script."""

HISTORY_KEPT_S: Final = 90 * 86_400
"""Time that resolved alerts are kept: a quarter, for reviews."""

HISTORY_MAX: Final = 50_000
"""Resolved alerts kept, the latest: 25 MiB of the registry."""

CLEANUP_INTERVAL_S: Final = 3_600
"""Interval of deleting old alerts and mutes."""

SINGLE_ALERTS_MAX: Final = 100
"""Open alerts of one rule and tenant about single gateways; further ones share an alert, as no person reads more."""

GATEWAYS_SHOWN_MAX: Final = 500
"""Gateways listed in one answer about an alert."""

WHAT_CHARACTERS_MAX: Final = 500
"""Characters kept of what is wrong."""

NOTE_CHARACTERS_MAX: Final = 500
"""Characters of a reason or note of a person."""

MUTE_S_MAX: Final = 30 * 86_400
"""Longest mute: a longer one is a rule to switch off."""

MUTES_MAX: Final = 200
"""Mutes in effect at a time: each alert is compared with each of them."""

RECEIVERS_MAX: Final = 20
"""Receivers of notifications: each gets every alert."""

RECIPIENTS_MAX: Final = 20
"""Mail addresses of one receiver; more people are a mailing list."""

RECEIVER_BYTES_MAX: Final = 16 * 1024
"""Bytes of a document about a rule, a mute or a receiver."""

SEND_S_MAX: Final = 10.0
"""Seconds for one step of sending a mail (connect, send, answer)."""

DELIVERY_S_MAX: Final = 60.0
"""Seconds after which another hub sends a notification without an outcome: several times the steps of a delivery."""

DELIVERIES_AT_ONCE: Final = 8
"""Deliveries in progress; a mail takes a thread."""

DELIVERIES_MAX: Final = 5_000
"""Notifications that wait for their receivers; above it the oldest ones are dropped."""

RETRY_S_FIRST: Final = 5.0
"""Seconds before the second attempt of a delivery; doubled for each further one."""

RETRY_S_MAX: Final = 900.0
"""Longest pause between two attempts of a delivery."""

RETRIED_S_MAX: Final = 86_400.0
"""Time after which a notification is no longer tried: the console has the alert."""

PING_S_RANGE: Final = (30, 86_400)
"""Interval of a dead-man ping, least and most seconds."""

FOR_S_MAX: Final = 7 * 86_400
"""Longest time that a condition may have to last."""

SLICE: Final = 500
"""Gateways classified or measured at a time, about 2 ms: others have their turn on the event loop between them."""

AWAY_GATEWAYS_MAX: Final = 20_000
"""Gateways judged that are connected to no hub, those seen last: as many as one hub has connections. Each hub reads
them in each evaluation, with 0.07 s of a processor. Further ones are in the list of gateways, and alerts about them
stay as they are."""

MEASURED_LABELS_S: Final = 20.0
"""Age up to which the labels of measured gateways are used again, unless a notice says that some have changed."""
