"""Simulation of a fleet: one hub configures many gateways for operators who change their minds."""
