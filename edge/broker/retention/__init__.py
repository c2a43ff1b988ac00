"""How much is kept and what is given up for room: quotas, summaries, and losses on their way to a peer's ledger."""
