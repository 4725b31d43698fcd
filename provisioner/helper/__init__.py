"""See docs/architecture.md for this room."""
