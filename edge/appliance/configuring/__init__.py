"""Configuration of a running gateway over HTTP: check, apply on trial, history, and single addresses."""
