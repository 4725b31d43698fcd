"""The statements of ``docs/postgres.md`` on a real server: what they make is what the page says of it."""

import re
from pathlib import Path

from tests.integration.postgres_lab import Lab

PAGE = Path(__file__).parents[2] / "docs" / "postgres.md"


def test_the_login_that_the_page_sets_up(lab: Lab) -> None:
    (block,) = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    statements = block.replace(" provisioner", " page_login").replace("…", "p4ge").split(";")
    try:
        for statement in filter(str.strip, statements):
            lab.do(statement)
        (rights,) = lab.do(
            "SELECT rolcanlogin, rolcreaterole, rolcreatedb, rolsuper FROM pg_roles WHERE rolname = 'page_login'"
        )
        assert rights == (True, True, True, False)
        assert lab.works("page_login", "p4ge", "page_login")
        lab.do("CREATE ROLE page_consumer LOGIN PASSWORD 'p4ge'")
        assert not lab.works("page_consumer", "p4ge", "page_login")
        assert lab.works("page_consumer", "p4ge", "postgres")
    finally:
        lab.do("DROP DATABASE IF EXISTS page_login")
        lab.do("DROP ROLE IF EXISTS page_login")
        lab.do("DROP ROLE IF EXISTS page_consumer")
