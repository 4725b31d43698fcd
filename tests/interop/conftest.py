"""Fixtures: the harness built once, one broker of each kind a session, and what each test starts stopped again."""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop import choria
from tests.interop.choria import Broker, Server
from tests.interop.daemon import Daemon
from tests.interop.process import Process, stop_all

PROCESSES = pytest.StashKey[list[Process]]()
LINES_OF_A_FAILURE = 60

MEASURED = pytest.StashKey[list[str]]()

Measured = Callable[[str, float], None]
StartServer = Callable[..., Server]
StartDaemon = Callable[..., Daemon]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Appends the end of each process's log to the report of a test that failed."""
    report = yield
    if report.failed:
        for process in item.stash.get(PROCESSES, []):
            report.sections.append((f"end of the log of {process.name}", process.tail(LINES_OF_A_FAILURE)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints what was measured on real Choria: reported, never judged by a speed."""
    if found := config.stash.get(MEASURED, []):
        terminalreporter.section("measured on real Choria")
        for line in found:
            terminalreporter.line(line)


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """Notes a number for the end of the run: ``measured("seconds until ...", 1.2)``."""
    lines = request.config.stash.setdefault(MEASURED, [])
    return lambda what, number: lines.append(f"{number:8.2f} {what} [{request.node.name}]")


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The harness program, built with the machine's own Go caches; gone at the end."""
    if choria.go() is None:
        pytest.skip("real Choria is not tested: there is no `go` command on PATH")
    program = choria.build(tmp_path_factory.mktemp("harness"))
    yield program
    program.unlink()


@pytest.fixture(scope="session")
def brokers(harness: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Broker]]:
    """A broker for each version of the protocol. Both start at once: an election bucket takes a minute to appear."""
    found = {version: Broker(version, tmp_path_factory.mktemp(f"broker-v{version}"), harness) for version in (1, 2)}
    try:
        for broker in found.values():
            broker.start()
        yield found
    finally:
        stop_all(broker.process for broker in found.values())


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def version(request: pytest.FixtureRequest) -> int:
    """The version of the protocol: 1 with an x509 authority, 2 with an Organization Issuer."""
    return int(request.param)


@pytest.fixture
def broker(version: int, brokers: dict[int, Broker], processes: list[Process]) -> Broker:
    """The broker of the test's ``version``."""
    processes.append(brokers[version].process)
    return brokers[version]


@pytest.fixture
def processes(request: pytest.FixtureRequest) -> Iterator[list[Process]]:
    """The processes of a test, for its report; those it started itself are stopped when it ends."""
    found = request.node.stash.setdefault(PROCESSES, [])
    yield found
    stop_all(process for process in found if process.name != "broker")


@pytest.fixture
def start_server(broker: Broker, processes: list[Process], tmp_path: Path) -> StartServer:
    """Starts a real server in provisioning mode: the arguments of ``choria.Server`` from the identity on.

    ``on`` is another broker than the test's own.
    """

    def start(identity: str, on: Broker = broker, **options: Any) -> Server:
        server = Server(on, identity, tmp_path / identity, **options)
        processes.append(server.process)
        server.start()
        return server

    return start


@pytest.fixture
def start_daemon(broker: Broker, processes: list[Process], tmp_path: Path) -> StartDaemon:
    """Starts ``choria-provisioner run`` under a name: then the named arguments of ``daemon.Daemon``.

    ``on`` is another broker than the test's own.
    """

    def start(name: str = "provisioner", on: Broker = broker, **options: Any) -> Daemon:
        daemon = Daemon(on, tmp_path / name, **options)
        processes.append(daemon.process)
        daemon.start()
        return daemon

    return start
