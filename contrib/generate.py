"""Makes the manual pages and the shells' completion from the programs' own flags: ``python contrib/generate.py``.

A test compares the files with what this makes.
"""

import argparse
import importlib
import sys
import tomllib
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path

import shtab

from provisioner.cli.program import Program
from provisioner.errors import EXIT_CODES
from provisioner.version import __version__

CONTRIB = Path(__file__).parent
SHELLS = {"bash": "completion/bash/{}", "zsh": "completion/zsh/_{}"}
FILES = {
    "choria-provisioner": {
        "/etc/choria-provisioner/choria-provisioner.yaml": "What to do: docs/configuration.md.",
        "/etc/choria-provisioner/choria.cfg": "How to reach Choria.",
    },
    "postgres-provisioner": {
        "/etc/postgres-provisioner/environment": "How the unit reaches PostgreSQL: PGHOST, PGUSER and so on."
    },
    "mesh-provisioner": {
        "/etc/mesh-provisioner/environment": "The unit's MESH_SERVERS and MESH_FLAGS.",
        "/etc/mesh-provisioner/password": "The password, which systemd hands to the service.",
    },
}


def programs() -> list[Program]:
    """The console programs that installing the package gives."""
    scripts = tomllib.loads((CONTRIB.parent / "pyproject.toml").read_text())["project"]["scripts"]
    return [importlib.import_module(target.partition(":")[0]).PROGRAM for target in scripts.values()]


# --- manual pages ----------------------------------------------------------------------------------------------------


def roff(text: str) -> str:
    """Plain text for troff: nothing in it is a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\\&" + escaped if escaped.startswith(".") else escaped


def changed() -> str:
    """The day of the last release, as the package's changelog has it."""
    lines = (CONTRIB.parent / "debian" / "changelog").read_text().splitlines()
    (line, *_) = [line for line in lines if line.startswith(" -- ")]
    return parsedate_to_datetime(line.partition("  ")[2]).date().isoformat()


def entry(term: str, said: str) -> str:
    """One tagged paragraph; ``term`` is roff already."""
    return f".TP\n{term}\n{roff(said)}\n"


def flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A paragraph for each flag and argument."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to ask
        if action.help == argparse.SUPPRESS:
            continue
        value = roff(str(action.metavar or action.dest.upper()))
        term = ", ".join(f"\\fB{roff(each)}\\fR" for each in action.option_strings)
        if not term:
            term = f"\\fI{roff(str(action.metavar or action.dest))}\\fR"
        elif action.nargs != 0:
            term += f" \\fI{value}\\fR"
        yield entry(term, (action.help or "").replace("%(default)s", str(action.default)))


def manual(program: Program) -> str:
    """The page of one program, for section 8."""
    name = program.name
    parts = [
        f'.TH {name.upper()} 8 {changed()} "{name} {__version__}" "System administration"\n',
        f".SH NAME\n{roff(name)} \\- {roff(program.summary.rstrip('.'))}\n",
        f".SH SYNOPSIS\n.B {roff(name)}\n[\\fICOMMAND\\fR] [\\fIFLAGS\\fR]\n",
        f".SH DESCRIPTION\n{roff(program.summary)}\n",
    ]
    if program.default:
        parts.append(f".PP\nWithout a command it does what \\fB{roff(program.default)}\\fR does.\n")
    parts.append(".SH COMMANDS\n")
    for command in program.commands:
        parts.append(
            f".SS {roff(name)} {roff(command.name)}\n{roff(command.summary[0].upper() + command.summary[1:])}.\n"
        )
        parts += flags(program.parser(command))
        if command.example:
            parts.append(f".PP\nExample:\n.PP\n.nf\n{roff(command.example)}\n.fi\n")
    parts.append(".SH EXIT STATUS\n")
    parts += [entry(f"\\fB{code}\\fR", meaning) for code, meaning in EXIT_CODES.items()]
    parts.append(".SH FILES\n")
    parts += [entry(f"\\fI{roff(path)}\\fR", said) for path, said in FILES[name].items()]
    others = [each for each in FILES if each != name]
    parts.append(".SH SEE ALSO\n" + ",\n".join(f"\\fB{roff(each)}\\fR(8)" for each in others) + "\n.PP\n")
    parts.append("The documentation in \\fI/usr/share/doc/choria\\-provisioner/\\fR.\n")
    return "".join(parts)


# --- completion ------------------------------------------------------------------------------------------------------


def whole(program: Program) -> argparse.ArgumentParser:
    """All commands of a program as one parser, which it is not when it runs: there only one command is imported."""
    parser = argparse.ArgumentParser(prog=program.name, description=program.summary)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    if program.default:
        default = next(command for command in program.commands if command.name == program.default)
        importlib.import_module(default.module).configure(parser)
    commands = parser.add_subparsers()
    for command in program.commands:
        one = commands.add_parser(command.name, help=command.summary)
        one.add_argument("--debug", action="store_true", help="log at level debug")
        importlib.import_module(command.module).configure(one)
        _mark(one)
    _mark(parser)
    return parser


def _mark(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:  # noqa: SLF001
        if action.type is Path:
            action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]


def made() -> dict[Path, str]:
    """Each file with its text."""
    files = {}
    for program in programs():
        files[CONTRIB / "man" / f"{program.name}.8"] = manual(program)
        for shell, path in SHELLS.items():
            files[CONTRIB / path.format(program.name)] = shtab.complete(whole(program), shell=shell) + "\n"
    return files


def main() -> int:
    """Writes each file that is out of date; tells which."""
    for path, text in made().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"{path}: written anew")
    return 0


if __name__ == "__main__":
    sys.exit(main())
