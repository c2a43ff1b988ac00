"""Jars with which Spark reads and writes tables: pinned by SHA-256, installed once at set-up, then local files."""
