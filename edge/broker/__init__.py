"""The broker (see the README here)."""
