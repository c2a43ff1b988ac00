"""Mutes of problems: a person has seen one, and it is listed apart until a time."""
