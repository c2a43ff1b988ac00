"""Simulated devices: one that measures this machine (`waypost simulate`), or thousands (`waypost device simulate`)."""
