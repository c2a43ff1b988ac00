"""The version of this program, in its one place (`pyproject.toml` reads it from here)."""

VERSION = "0.1.0"
