"""The version of this package, as ``--version`` prints it and as events and metrics carry it."""

__version__ = "0.1.0"
