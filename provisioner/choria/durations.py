"""Durations live in the bottom row, for the provisioner's own configuration reads them too."""

from provisioner.durations import MAX_SECONDS, parse_duration

__all__ = ["MAX_SECONDS", "parse_duration"]
