"""Suites of other projects, run against a gateway from a checkout of the suite."""
