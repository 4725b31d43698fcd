"""How each of the three programs starts and ends: its sub-commands, its flags, its exit code.

A sub-command is a module with ``configure(parser)``, which adds its flags, and ``main(arguments) -> int``, which does
it and returns the exit code. Its module is imported only when it is chosen: ``--version`` needs nothing.
"""

import argparse
import importlib
import resource
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence

from attrs import frozen

from provisioner.errors import (
    EXIT_BUG,
    EXIT_CODES,
    EXIT_FINDING,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    BusError,
    ConfigError,
    ProvisionerError,
)
from provisioner.version import __version__


@frozen
class Command:
    """One sub-command: its word, the module that does it, one line about it, and an example to copy."""

    name: str
    module: str
    summary: str
    example: str = ""


@frozen
class Program:
    """One console program. ``default`` is the command that runs when none is named; ``""`` asks for one."""

    name: str
    summary: str
    commands: tuple[Command, ...]
    default: str = ""

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Runs the command that ``argv`` names (default: of this process) and returns the exit code."""
        words = list(sys.argv[1:] if argv is None else argv)
        # Global flags may stand before the command.
        count = next((i for i, word in enumerate(words) if word not in _GLOBAL), len(words))
        leading, rest = words[:count], words[count:]
        if "--version" in leading or rest[:1] == ["--version"]:
            print(__version__)
            return EXIT_OK
        named = {command.name: command for command in self.commands}
        asked_help = not {"--help", "-h"}.isdisjoint(leading)
        if rest and rest[0] in named:
            chosen = named[rest.pop(0)]
        elif rest and not rest[0].startswith("-"):
            print(f"{self.name}: no such command: {rest[0]}; there are {', '.join(named)}", file=sys.stderr)
            return EXIT_REFUSED
        elif asked_help or not self.default:
            print(self._help(), file=sys.stdout if asked_help else sys.stderr)
            return EXIT_OK if asked_help else EXIT_REFUSED
        else:
            chosen = named[self.default]
        return guarded(self.name, lambda: self._run(chosen, [*leading, *rest]))

    def parser(self, command: Command) -> argparse.ArgumentParser:
        """The flags of one command."""
        parser = argparse.ArgumentParser(
            prog=f"{self.name} {command.name}",
            description=command.summary,
            epilog=f"Example:\n  {command.example}" if command.example else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.add_argument("--debug", action="store_true", help="log at level debug, whatever the configuration says")
        parser.add_argument("--version", action="version", version=__version__, help="print the version and exit")
        importlib.import_module(command.module).configure(parser)
        # The formatter leaves the example as it stands, and with it the description: that one is wrapped here.
        parser.description = textwrap.fill(parser.description or "", shutil.get_terminal_size().columns - 2)
        return parser

    def _run(self, command: Command, words: list[str]) -> int:
        arguments = self.parser(command).parse_args(words)
        # A core file would hold every secret of the process.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        return int(importlib.import_module(command.module).main(arguments))

    def _help(self) -> str:
        width = max(len(command.name) for command in self.commands)
        lines = [f"usage: {self.name} [--debug] [COMMAND] [FLAGS]", "", self.summary, "", "commands:"]
        lines += [f"  {command.name:<{width}}  {command.summary}" for command in self.commands]
        lines += ["", f"Flags of a command: {self.name} COMMAND --help"]
        if self.default:
            lines += [f"Without a command: {self.default}", "", self.parser(self._named(self.default)).format_help()]
        lines += ["exit codes:"] + [f"  {code:>2}  {meaning}" for code, meaning in EXIT_CODES.items()]
        return "\n".join(lines)

    def _named(self, name: str) -> Command:
        return next(command for command in self.commands if command.name == name)


_GLOBAL = frozenset({"--debug", "--help", "-h"})


def guarded(program: str, body: Callable[[], int]) -> int:
    """Runs ``body`` and turns what it raises into words on standard error and an exit code (spec: outcomes 5).

    What the operator can set right is told in one line a fault, without a traceback. Anything unforeseen is a bug and
    shows its traceback. SystemExit (of argparse) keeps its code.
    """
    try:
        return body()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else EXIT_REFUSED if leaving.code else EXIT_OK
    except KeyboardInterrupt:
        return 130
    except BaseException as error:  # noqa: BLE001 - the end of the process: nothing is above it
        return _told(program, error)


def _told(program: str, error: BaseException) -> int:
    foreseen = _foreseen(error)
    if foreseen is None:
        traceback.print_exception(error)
        return EXIT_BUG
    for each in foreseen:
        for line in str(each).splitlines() or [type(each).__name__]:
            print(f"{program}: {line}", file=sys.stderr)
    if any(isinstance(each, ConfigError) for each in foreseen):
        return EXIT_REFUSED
    if all(isinstance(each, BusError) for each in foreseen):
        return EXIT_UNREACHABLE
    return EXIT_FINDING


def _foreseen(error: BaseException) -> list[ProvisionerError] | None:
    """The errors in ``error``, which may be a group of groups; None as soon as one of them is a bug."""
    if isinstance(error, ProvisionerError):
        return [error]
    if not isinstance(error, BaseExceptionGroup):
        return None
    found: list[ProvisionerError] = []
    for inner in error.exceptions:
        inside = _foreseen(inner)
        if inside is None:
            return None
        found += inside
    return found
