"""The registry: commits (what is landing and what has landed) and directory (who there is), in one database."""
