"""The flags by which ``mesh-provisioner`` finds its server and shows who it is, and the bus they stand for."""

import argparse
import ssl
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import urlsplit

from provisioner.bus.login import Credentials
from provisioner.bus.nats import NatsBus, Options, open_nats
from provisioner.errors import ConfigError, Fault
from provisioner.secret import Secret


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument(
        "--servers",
        type=_servers,
        required=True,
        metavar="URL[,URL]",
        help="the NATS servers, such as nats://broker.example.net:4222; tls:// demands TLS",
    )
    parser.add_argument("--user", metavar="USER", help="the account's user; needs --password-file")
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="holds the user's password and nothing else")
    parser.add_argument("--creds", type=Path, metavar="FILE", help="a NATS credentials file, instead of a user")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="demand TLS and trust these authorities (PEM)")


def _servers(text: str) -> list[str]:
    return [_server(url.strip()) for url in text.split(",") if url.strip()] or _refuse("no server is named")


def _server(url: str) -> str:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        if parts.username is not None or parts.password is not None:
            # Not quoted: it holds a password.
            _refuse("a server's URL may not hold a password, which everybody sees: use --user and --password-file")
        if parts.scheme not in {"nats", "tls"} or not parts.hostname or parts.path.strip("/") or parts.query:
            _refuse(f"{url!r} is not nats://HOST:PORT or tls://HOST:PORT")
        return f"{parts.scheme}://{parts.netloc if parts.port else f'{parts.netloc}:4222'}"
    except ValueError:
        return _refuse(f"{url!r} is not nats://HOST:PORT or tls://HOST:PORT")[0]


def _refuse(problem: str) -> list[str]:
    raise argparse.ArgumentTypeError(problem)


def open_bus(arguments: argparse.Namespace, name: str) -> AbstractAsyncContextManager[NatsBus]:
    """The bus that the flags describe; files are read now, to be refused now, and again at each new connection.

    Raises:
        ConfigError: the flags don't go together, or a file can't be used.
    """
    if bool(arguments.user) != bool(arguments.password_file):
        raise ConfigError([Fault("--user", "", "goes together with --password-file")])
    if arguments.user and arguments.creds:
        raise ConfigError([Fault("--creds", "", "excludes --user")])

    def credentials() -> Credentials:
        if arguments.creds:
            _readable("--creds", arguments.creds)
            return Credentials(creds_file=arguments.creds)
        if arguments.user:
            return Credentials(user=arguments.user, password=_password(arguments.password_file))
        return Credentials()

    def tls() -> ssl.SSLContext:
        if arguments.tls_ca:
            _readable("--tls-ca", arguments.tls_ca)
        try:
            return ssl.create_default_context(cafile=arguments.tls_ca)
        except ssl.SSLError as error:
            problem = f"holds no certificates in PEM: {error.reason or error}"
            raise ConfigError([Fault(str(arguments.tls_ca), "--tls-ca", problem)]) from None

    async def resolve() -> Sequence[str]:
        return list(arguments.servers)

    demand_tls = bool(arguments.tls_ca) or any(url.startswith("tls:") for url in arguments.servers)
    credentials()
    if demand_tls:
        tls()
    return open_nats(resolve, Options(name=name, credentials=credentials, tls=tls if demand_tls else None))


def _password(path: Path) -> Secret:
    text = _readable("--password-file", path).removesuffix("\n").removesuffix("\r")
    if not text or "\n" in text:
        raise ConfigError([Fault(str(path), "--password-file", "must hold one line, the password")])
    return Secret(text)


def _readable(flag: str, path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError([Fault(str(path), flag, f"can't be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise ConfigError([Fault(str(path), flag, "is not text")]) from None
