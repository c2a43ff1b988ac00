"""The language of configuration on both banks: resources in YAML, each value with the line it was written in.

A bank declares its parts (`fields.Part`), registers its kinds and what has to hold between resources
(`resource.Kinds`), and reads files by them (`parse`). Where a change is to be stored, `plan` says what it would make.
"""
