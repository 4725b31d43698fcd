"""What the lab raises: a real PostgreSQL, and a host's directory of grants."""

from tests.integration.postgres_fixtures import lab, postgres

__all__ = ["lab", "postgres"]
