"""Limits of the store for the workload."""

from __future__ import annotations

from edge.broker.store.limits import StoreLimits

LIMITS = StoreLimits(
    segment_bytes_max=6_000,
    moves_delay_s=0.02,
    counted_commits_max=7,
    counted_bytes_max=60_000,
    counted_addresses_max=5,
    counted_commits_many_max=15,
    counted_bytes_deleting_max=20_000,
    counted_at_once=2,
    counted_logs_few=3,
    reclaim_rows_max=9,
    reclaim_bytes_max=40_000,
    checkpoint_bytes=120_000,
    evict_bytes_max=30_000,
    thin_bytes_max=40_000,
    ledger_growing_max=6,
    memory_ledger_s=3.0,
    memory_idle_s=15.0,
    memory_bytes_max=12_000,
    memory_total_bytes_max=20_000,
    memory_reserve_min=4,
    memory_reserve_max=40,
    memory_addresses_max=6,
)
"""Limits that make all background work of the store happen every few commits."""
