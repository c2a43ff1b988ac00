"""Jars for Spark to read and write tables: pinned by SHA-256, installed once at set-up, then local files."""
