"""Simulation of a fleet: how many gateways are configured by one hub, with people who change their minds."""
