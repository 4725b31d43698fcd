"""Fixtures of this folder."""

from tests.integration.postgres_fixtures import lab, postgres

__all__ = ["lab", "postgres"]
