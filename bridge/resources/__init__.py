"""The language of configuration on both banks: YAML documents, each value with the line it was written in."""
