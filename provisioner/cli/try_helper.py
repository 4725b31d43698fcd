"""``choria-provisioner helper``: tries the site's helper, on a sample, a recorded input or a simulated fleet."""

import argparse
import difflib
import logging
import os
import statistics
import textwrap
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import trio
from attrs import fields_dict, frozen

from provisioner import strictjson
from provisioner.cli.answer import answer_lines, complaint_lines
from provisioner.cli.helper_mode import helper_runner
from provisioner.cli.screen import printing, terminal_width, wrapped
from provisioner.cli.signals import handle_signals
from provisioner.command import check_command, split_command
from provisioner.config import Config, Features, load_config
from provisioner.cycle.facts import Facts
from provisioner.cycle.rehearsal import Complaint, rehearse
from provisioner.cycle.steps import RunHelper
from provisioner.errors import EXIT_FINDING, EXIT_OK, ConfigError, Fault, HelperError
from provisioner.helper.contract import HelperReply, decode_reply
from provisioner.helper.process import LIMIT
from provisioner.helper.recording import Recorder
from provisioner.printable import escaped
from provisioner.secret import Secret
from provisioner.simulator.samples import Sample, make_samples
from provisioner.trust.server_token import ServerTokenIssuer, load_server_token_issuer

MAX_INPUT = 4 << 20
"""Bytes of an input file; a server's whole inventory is under 1 MiB."""

MAX_FLEET = 10_000
SLOWEST = 5
"""Slowest inputs that are named."""


@frozen
class Verdict:
    """One run, judged. ``seconds`` is its time; ``reply`` is None for an answer that can't be read."""

    sample: Sample
    seconds: float
    word: str
    text: str = ""
    complaints: tuple[Complaint, ...] = ()
    notes: tuple[str, ...] = ()
    stderr: str = ""
    size: int = 0
    reply: HelperReply | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.description = (
        "Runs the site's helper as the daemon would, without a server, and shows its time, its standard error, its "
        "answer and every complaint there would be. Nothing is sent anywhere; the helper itself does what it does."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--config", type=Path, metavar="FILE", help="the provisioner's YAML file, for helper and features"
    )
    which.add_argument("--command", metavar="COMMAND", help="a helper to try without any configuration")
    parser.add_argument(
        "--feature",
        action="append",
        default=[],
        choices=("jwt", "pki", "ed25519", "upgrades"),
        help="with --command: as if this feature were on; may be repeated (default: jwt)",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--input", type=Path, metavar="FILE", help="what to tell it: a recorded input (run --record)")
    source.add_argument("--fleet", type=_number, metavar="N", help="run it for N simulated servers, and sum up")
    parser.add_argument("--workers", type=_number, metavar="N", help="with --fleet: how many at once")
    parser.add_argument(
        "--record", type=Path, metavar="DIR", help="write each input there, to try it again with --input"
    )


def _number(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MAX_FLEET:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {MAX_FLEET}")
    return int(text)


def main(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Returns:
        0 when there is nothing to complain about, else 1.

    Raises:
        ConfigError: a file or a flag can't be used, or the helper could not even be started.
    """
    config = load_config(arguments.config) if arguments.config else _made_config(arguments.command, arguments.feature)
    if problem := check_command(config.helper):
        where = str(config.path) if arguments.config else "--command"
        raise ConfigError([Fault(where, "helper" if arguments.config else "", problem)])
    if arguments.record and not arguments.record.is_dir():
        raise ConfigError([Fault("--record", "", "must be a directory that exists", str(arguments.record))])
    if not arguments.debug:
        logging.getLogger("provisioner").addHandler(logging.NullHandler())  # stderr is shown once, below
    now = time.time()
    samples = [_read(arguments.input)] if arguments.input else make_samples(arguments.fleet or 1, config, now=now)
    if arguments.record:
        recorder = Recorder(arguments.record)
        for sample in samples:
            recorder(sample.identity, sample.payload)
    workers = min(arguments.workers or config.workers, len(samples))
    with printing():
        if arguments.fleet:
            print(f"Running the helper for {len(samples)} simulated servers, {workers} at once", flush=True)
        verdicts = trio.run(judge_all, samples, config, workers)
        if len(verdicts) < len(samples):
            print("Stopped")
            return 130
        lines = fleet_lines(verdicts) if arguments.fleet else _lines(verdicts[0], config, arguments.input)
        for line in lines:
            print(line)
    return EXIT_FINDING if any(verdict.complaints for verdict in verdicts) else EXIT_OK


def _made_config(command: str, features: Sequence[str]) -> Config:
    try:
        helper = split_command(command)
    except ValueError as error:
        raise ConfigError([Fault("--command", "", f"must be a command; {error}", escaped(command, 100))]) from None
    if "/" in helper[0]:
        helper = (os.path.abspath(helper[0]), *helper[1:])  # noqa: PTH100 - no link is followed: argv[0] counts
    on = {name: name in (features or ["jwt"]) for name in ("jwt", "pki", "ed25519", "upgrades")}
    on["jwt"] |= on["ed25519"]
    return Config(
        path=Path("--command"),
        workers=len(os.sched_getaffinity(0)),
        interval=60.0,
        interval_text="1m",
        helper=helper,
        token=Secret(""),
        features=Features(**on),
        upgrades_repository="http://upgrades.example.net",
    )


def _read(path: Path) -> Sample:
    """A recorded input. It is handed on byte for byte; what isn't as a cycle would write it is refused."""

    def wrong(problem: str) -> ConfigError:
        return ConfigError([Fault(str(path), "", problem)])

    try:
        with path.open("rb") as file:
            payload = file.read(MAX_INPUT + 1)
    except OSError as error:
        raise wrong(f"can't be read: {error.strerror}") from None
    if len(payload) > MAX_INPUT:
        raise wrong(f"is over {MAX_INPUT} bytes")
    try:
        told = strictjson.loads(payload)
        inventory = strictjson.loads(told["inventory"])
        identity = told["identity"]
    except strictjson.NotJSON as error:
        raise wrong(f"is no helper input: {error}") from None
    except (KeyError, TypeError):
        raise wrong("is no helper input: an object with the texts identity and inventory is wanted") from None
    if not isinstance(identity, str) or not isinstance(inventory, dict):
        raise wrong("is no helper input: identity must be a text, and inventory the text of a JSON object")
    parts = [told.get(name) for name in ("jwt", "ed25519_pubkey", "csr")]
    if not all(part is None or isinstance(part, dict) for part in parts):
        raise wrong("is no helper input: jwt, ed25519_pubkey and csr must be objects, or null")
    if not all(isinstance(value, str) for part in parts[1:] if part for value in part.values()):
        raise wrong("is no helper input: what stands in ed25519_pubkey and csr must be texts")
    facts = Facts(identity, parts[0], ed25519=parts[1], csr=parts[2], inventory=inventory)
    return Sample(facts, payload)


# --- running --------------------------------------------------------------------------------------------------------


async def judge_all(samples: Sequence[Sample], config: Config, workers: int) -> list[Verdict]:
    """Runs the helper for each sample; fewer verdicts than samples when it was told to stop.

    Raises:
        ConfigError: the files of ``features.ed25519`` can't be used.
    """
    issuer = _issuer(config)
    verdicts: list[Verdict] = []
    todo = iter(samples)

    async def work() -> None:
        for sample in todo:
            verdicts.append(await judge(sample, config, run_helper, issuer))  # noqa: PERF401 - in order of their ends

    async with trio.open_nursery() as process:
        stop = process.cancel_scope.cancel
        await process.start(partial(handle_signals, stop=stop, abort=stop, hangup=stop))
        async with helper_runner(config) as run_helper, trio.open_nursery() as nursery:
            for _ in range(workers):
                nursery.start_soon(work)
        process.cancel_scope.cancel()
    return verdicts


def _issuer(config: Config) -> ServerTokenIssuer | None:
    if not config.features.ed25519 or config.jwt_signing_key is None:
        return None
    return load_server_token_issuer(
        config.jwt_signing_key, config.jwt_signing_token, config.server_jwt_validity, now=time.time()
    )


async def judge(
    sample: Sample, config: Config, run_helper: RunHelper, issuer: ServerTokenIssuer | None = None
) -> Verdict:
    """One run of the helper, and what would come of it."""
    began = time.monotonic()
    try:
        run = await run_helper(config.helper, sample.payload, identity=sample.identity)
    except HelperError as error:
        return _failed(sample, time.monotonic() - began, error, stderr=error.stderr)
    try:
        reply = decode_reply(run.stdout)
    except HelperError as error:
        return _failed(sample, run.seconds, error, stderr=run.stderr, size=len(run.stdout))
    found = rehearse(reply, sample.facts, config, issuer=issuer, now=time.time())
    return Verdict(
        sample,
        run.seconds,
        found.word,
        found.text,
        found.complaints,
        tuple(_notes(run.stdout)),
        run.stderr,
        len(run.stdout),
        reply,
    )


def _failed(sample: Sample, seconds: float, error: HelperError, *, stderr: str, size: int = 0) -> Verdict:
    text = str(error)
    return Verdict(sample, seconds, error.reason, text, (Complaint(error.reason, text),), stderr=stderr, size=size)


def _notes(stdout: bytes) -> Iterator[str]:
    """Keys that nobody reads: most often slips of the pen."""
    known = fields_dict(HelperReply)
    for key in strictjson.loads(stdout):
        if key.lower() not in known:
            near = difflib.get_close_matches(key.lower(), known, n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            yield f"the key {escaped(key, 80)!r} is not known and is ignored{guess}"


# --- telling --------------------------------------------------------------------------------------------------------


def _lines(verdict: Verdict, config: Config, recorded: Path | None) -> Iterator[str]:
    """One run: a word at the left, what it is at the right."""
    width = terminal_width()

    def row(name: str, text: str) -> str:
        return f"{name:<9}{wrapped(text, 9, width)}"

    features = [name for name in ("jwt", "pki", "ed25519", "upgrades") if getattr(config.features, name)]
    source = f"from {recorded}" if recorded else f"a sample, features {', '.join(features) or 'none'}"
    yield row("helper", escaped(" ".join(config.helper)))
    yield row("server", f"{escaped(verdict.sample.identity)}, {source}, {len(verdict.sample.payload)} bytes of input")
    yield row("time", f"{verdict.seconds:.3f} s, of {LIMIT:g} s at most")
    for number, line in enumerate(verdict.stderr.splitlines() or ["nothing"]):
        yield row("" if number else "stderr", line)
    yield row("answer", f"{verdict.size} bytes")
    if verdict.reply is not None:
        for line in answer_lines(verdict.reply, None if width is None else width - 11):
            yield textwrap.indent(line, " " * 11)
    for note in verdict.notes:
        yield row("note", note)
    if not verdict.complaints:
        said = f": {verdict.text}" if verdict.text else ""
        yield row("result", f"a cycle would end as {verdict.word}{said}")
        return
    yield row("result", f"a cycle would fail as {verdict.word}")
    for line in complaint_lines(verdict.complaints, None if width is None else width - 9):
        yield textwrap.indent(line, " " * 9)


def fleet_lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """A summary: how many ended how, with least, median and most time; the slowest; a complaint of each kind."""
    words = sorted({verdict.word for verdict in verdicts})
    yield f"{'outcome':<20}{'servers':>8}{'least':>10}{'median':>10}{'most':>10}"
    for word in words:
        times = [verdict.seconds for verdict in verdicts if verdict.word == word]
        yield f"{word:<20}{len(times):>8}{min(times):>9.3f}s{statistics.median(times):>9.3f}s{max(times):>9.3f}s"
    yield ""
    yield "slowest inputs"
    for verdict in sorted(verdicts, key=lambda verdict: -verdict.seconds)[:SLOWEST]:
        yield f"  {verdict.seconds:7.3f} s  {verdict.sample.identity}  {verdict.word}"
    for word in words:
        bad = [verdict for verdict in verdicts if verdict.word == word and verdict.complaints]
        if bad:
            yield ""
            yield f"{word}: {bad[0].sample.identity}{f' and {len(bad) - 1} more' if len(bad) > 1 else ''}"
            yield from (f"  {line}" for line in complaint_lines(bad[0].complaints, None))
