"""Configuration language of gateway and hub: resources in YAML, each value with its line.

A program declares its parts (`fields.ResourcePart`), registers its kinds and the rules between resources
(`resource.ResourceKinds`), and reads files (`parse`). `plan` computes the result of a change before it is stored.
"""
