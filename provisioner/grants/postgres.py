"""Connections to one PostgreSQL server: every statement of this program passes through ``Session.execute``.

Two dangers shape it. A database's owner can set what our connection into it begins with (``search_path``, ``role``,
time-outs), so each connection overrides all of that (postgres-versions 4 and 10). And some statements "succeed" with a
warning and do nothing, so those warnings are errors here.
"""

import contextlib
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, LiteralString, Self, TypeVar

import psycopg
from attrs import define, field
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from provisioner.errors import GrantError, RunEnded, StatementRefused

log = logging.getLogger(__name__)

T = TypeVar("T")
Row = tuple[Any, ...]
Statement = LiteralString | sql.Composable

APPLICATION = "postgres-provisioner"
NOTHING_GRANTED, NOTHING_REVOKED = "01007", "01006"
LOCK_NOT_AVAILABLE = "55P03"
INSUFFICIENT_PRIVILEGE = "42501"
PASSING = frozenset({"XX000", LOCK_NOT_AVAILABLE, "55006", "40P01", "40001", "53300"})
"""Refusals that pass: two changes of one catalogue row, a lock, a database in use, a deadlock, a full server."""

_CONNECT_SECONDS = 10
_PATIENCE_SECONDS = 5.0
"""No try is begun later: one consumer that somebody holds a lock on must not hold up the others for long."""
_LONGEST_PAUSE = 0.05
"""Seconds between two tries. Against somebody who changes a role all the time one try in eight succeeds, so there must
be many; each pause is another one, lest they keep step with him."""
_LOST = re.compile(r"08|57P0[1-5]|58")
_VERIFIER = re.compile(r"'SCRAM-SHA-256\$[^']*'")
_READ_WRITE = "default_transaction_read_only=off"
_OPTIONS = (
    *("search_path=pg_catalog", "lock_timeout=3s", "statement_timeout=60s", "client_encoding=UTF8"),
    *("role=none", _READ_WRITE, "idle_session_timeout=0"),
    *("idle_in_transaction_session_timeout=0", "client_min_messages=notice", "standard_conforming_strings=on"),
    "local_preload_libraries=",
)
_LONG = "statement_timeout=15min"
"""In consumers' databases: what it takes to hand over everything in a large one."""
_OPTIONS_17 = ("transaction_timeout=0",)


def _ignore(_: str) -> None:
    pass


def parameters(dsn: str | None) -> dict[str, Any]:
    """The connection parameters in a DSN; none without one, as libpq then takes its environment.

    Raises:
        GrantError: it can't be read, or it holds a password: a command line can be seen by everybody on the machine.
    """
    if dsn is None:
        return {}
    try:
        found = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise GrantError("--dsn is not a connection string that libpq understands") from None
    if secret := [key for key in ("password", "sslpassword") if found.get(key)]:
        raise GrantError(
            f"--dsn holds a {secret[0]}, which everybody on this machine can see: put it into the password file "
            "(~/.pgpass or PGPASSFILE, mode 0600) and leave it out here"
        )
    return found


@define
class Link:
    """How the server is reached, and the sessions that are open to it.

    Args:
        base: libpq connection parameters; what is missing comes from libpq's environment.
        on_statement: told each statement before it is sent, verifiers masked: to count them, or to stop at one.
    """

    base: dict[str, Any] = field(repr=False)
    on_statement: Callable[[str], None] = _ignore
    version: int = 0
    _stop: threading.Event = field(factory=threading.Event)
    _open: list[psycopg.Connection[Row]] = field(factory=list)

    def connect(self, dbname: str | None = None) -> "Session":
        """Opens a session.

        Args:
            dbname: another database than the one that the operator named.

        Raises:
            RunEnded: the server can't be reached, or doesn't let us in (without ``dbname``).
            StatementRefused: that one database doesn't let us in.
        """
        self.go_on()
        options = [*_OPTIONS, *(_OPTIONS_17 if self.version >= 170000 else ())]
        if dbname is None:
            # Whether the server is read only is to be seen on this one, not overridden.
            options.remove(_READ_WRITE)
        else:
            options.append(_LONG)
        given = self.base | ({} if dbname is None else {"dbname": dbname})
        set_by_us = " ".join(f"-c {option}" for option in options)
        asked = given.get("options") or os.environ.get("PGOPTIONS", "")
        given |= {"options": f"{asked} {set_by_us}", "application_name": APPLICATION}
        given.setdefault("connect_timeout", _CONNECT_SECONDS)
        try:
            connection = psycopg.connect(make_conninfo("", **given), autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            text = _first_line(error)
            if dbname is None:
                raise RunEnded(f"PostgreSQL can't be reached: {text}") from None
            raise StatementRefused(f"can't connect to the database {dbname}: {text}") from None
        if dbname is None:
            self._pin(connection)
        self._open.append(connection)
        return Session(self, connection)

    def _pin(self, connection: psycopg.Connection[Row]) -> None:
        """Of several hosts, stay with the one that answered; and remember its version."""
        info = connection.info
        self.version = info.server_version
        self.base = self.base | {"host": info.host, "port": str(info.port), "user": info.user}
        if self.base.get("hostaddr"):
            self.base["hostaddr"] = info.hostaddr

    def forget(self, connection: psycopg.Connection[Row]) -> None:
        """A session is closed."""
        with contextlib.suppress(ValueError):
            self._open.remove(connection)

    def stop(self) -> None:
        """Ends the run at its next statement, and cancels the one under way. May be called from another thread."""
        self._stop.set()
        for connection in tuple(self._open):
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=1.0)

    @property
    def is_stopping(self) -> bool:
        """We were told to stop."""
        return self._stop.is_set()

    def go_on(self) -> None:
        """Raises ``RunEnded`` once we were told to stop."""
        if self._stop.is_set():
            raise RunEnded("told to stop")

    def pause(self, seconds: float) -> None:
        """Waits; raises ``RunEnded`` at once when told to stop."""
        self._stop.wait(seconds)
        self.go_on()

    def patiently(self, action: Callable[[], T]) -> T:
        """Does something, and again for five seconds while what refuses it will pass.

        Args:
            action: a whole transaction; nothing of a failed try stays.
        """
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return action()
            except StatementRefused as error:
                if error.sqlstate not in PASSING or time.monotonic() > give_up:
                    raise
            self.pause(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311 - guards nothing


@define
class Session:
    """One connection; outside of ``transaction`` each statement is committed by itself."""

    link: Link
    connection: psycopg.Connection[Row]
    _warnings: list[tuple[str, str]] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.connection.add_notice_handler(self._noticed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; what was not committed is gone."""
        self.link.forget(self.connection)
        self.connection.close()

    def _noticed(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        self._warnings.append((diagnostic.sqlstate or "", diagnostic.message_primary or ""))

    def execute(self, statement: Statement, values: tuple[Any, ...] | dict[str, Any] | None = None) -> list[Row]:
        """Sends one statement and gives its rows, none if it has none.

        Raises:
            StatementRefused: the server refused it, or did nothing and merely warned.
            RunEnded: the connection is gone, or we were told to stop.
        """
        self.link.go_on()
        text = statement if isinstance(statement, str) else statement.as_string(self.connection)
        shown = _VERIFIER.sub("'****'", text)
        self.link.on_statement(shown)
        log.debug("SQL: %s", shown)
        self._warnings.clear()
        try:
            cursor = self.connection.execute(text.encode(), values)
            rows = cursor.fetchall() if cursor.description is not None else []
        except psycopg.Error as error:
            raise self._refusal(error) from None
        except UnicodeError:
            raise StatementRefused("it can't be said in the server's encoding, or its answer can't be read") from None
        for code, message in self._warnings:
            if code in (NOTHING_GRANTED, NOTHING_REVOKED):
                raise StatementRefused(message, code)
        return rows

    def one(self, statement: Statement, values: tuple[Any, ...] | None = None) -> Row | None:
        """The first row of a query, if it has one."""
        rows = self.execute(statement, values)
        return rows[0] if rows else None

    def _refusal(self, error: psycopg.Error) -> GrantError:
        """The server's words without the statement: a message may quote it, and with it a verifier."""
        code = error.sqlstate or ""
        if self.connection.closed or _LOST.match(code):
            if self.link.is_stopping:
                return RunEnded("told to stop")
            return RunEnded(f"the connection to PostgreSQL is lost: {error.diag.message_primary or 'it was closed'}")
        if code == "57014" and self.link.is_stopping:
            return RunEnded("told to stop")
        if not code and error.diag.message_primary is None:
            return StatementRefused(f"{type(error).__name__}: it can't be sent to the server")
        parts = [error.diag.message_primary or "refused", *filter(None, [error.diag.message_detail])]
        return StatementRefused(": ".join(" ".join(part.split()) for part in parts), code)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """One transaction for the time of a ``with`` block; an error undoes it whole."""
        self.execute("BEGIN")
        try:
            yield
            self.execute("COMMIT")
        except StatementRefused:
            self.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def acting_as(self, role: str) -> Iterator[None]:
        """Does what is in a ``with`` block as another role."""
        self.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        try:
            yield
        finally:
            if not self.connection.closed:
                self.execute("RESET ROLE")


def _first_line(error: psycopg.Error) -> str:
    """What libpq says of a connection that didn't come about, on one line."""
    return " ".join(str(error).split())[:500]
