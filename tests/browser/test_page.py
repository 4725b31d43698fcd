"""The status page in a real browser, on a real daemon, a real broker and a simulated fleet."""

import re
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from provisioner.bus.nats import Options, open_nats
from provisioner.simulator.embedded import NatsServer
from provisioner.simulator.faults import Fault, Kind
from provisioner.simulator.fleet import Fleet, make_servers, open_fleet
from tests.integration.daemon import Daemon, running_daemon, write_helper

chromium = pytest.importorskip("tests.browser.chromium", reason="playwright and axe are not installed")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(180),
    pytest.mark.skipif(chromium.CHROMIUM is None, reason="there is no chromium here"),
]

NARROW = {"viewport": {"width": 400, "height": 860}}
HOSTILE = "<img src=x onerror=alert(1)><b>not bold</b>"

HELPER = r"""#!/bin/sh
identity=$(sed 's/.*"identity":"\([^"]*\)".*/\1/')
sleep 0.4
case $identity in
  n00?7.*) echo '{"defer":true,"msg":"<img src=x onerror=alert(1)><b>not bold</b>","reason":"later"}' ;;
  n00?8.*) echo "no such role" >&2; exit 3 ;;
  *) echo '{"configuration":{"plugin.choria.server.provision":"0","identity":"x"}}' ;;
esac
"""

TROUBLES = [
    (Fault(Kind.WRONG_TOKEN), 3),
    (Fault(Kind.TWO_ANSWERS), 1),
    (Fault(Kind.LOCKED), 2),
    (Fault(Kind.EXPIRED_JWT), 2),
]


def resolver(server: NatsServer) -> Any:
    async def resolve() -> list[str]:
        return [server.url]

    return resolve


@asynccontextmanager
async def world(
    nats: NatsServer, directory: Path, servers: int, faults: Iterable[tuple[Fault, int]] = (), **keys: Any
) -> AsyncIterator[tuple[Daemon, Fleet]]:
    """A daemon and a fleet on one broker."""
    directory.mkdir(exist_ok=True)
    made = make_servers(servers, version=1, token="s3cret", now=time.time(), faults=faults)
    (directory / "signer.pem").write_text(made.issuer.verification_text)
    write_helper(directory, HELPER)
    keys |= {"features": {"jwt": True}, "jwt_verify_cert": str(directory / "signer.pem")}
    async with open_nats(resolver(nats), Options(name="fleet")) as bus:
        await bus.wait_connected()
        async with open_fleet(bus, made.servers) as fleet, running_daemon(directory, nats.port, **keys) as daemon:
            await daemon.until(lambda status: status["connected"])
            yield daemon, fleet


def url(daemon: Daemon) -> str:
    return f"http://127.0.0.1:{daemon.port}/"


BUSY = "document.querySelectorAll('#recent > tr').length > 20 && document.querySelectorAll('#work > tr').length > 0"


def count(seen: Any, selector: str) -> int:
    return int(re.sub(r"\D", "", seen.text(selector)) or 0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_empty(nats: NatsServer, tmp_path: Path, scheme: str) -> None:
    def script(seen: Any) -> None:
        seen.until("document.body.dataset.state === 'good'")
        assert seen.text("#headline") == "Working alone, connected"
        assert f"127.0.0.1:{nats.port}" in seen.text("#explained")
        assert seen.text("#who") == "prov.example.net, site testing"
        assert seen.text("#work-none") == "Nobody is worked on."
        assert seen.text("#waiting-none") == "Nobody waits."
        assert seen.text("#recent-none") == "Nothing has ended yet."
        assert seen.rows("work") == seen.rows("waiting") == seen.rows("recent") == []
        assert seen.page.title() == "prov.example.net - choria-provisioner"
        # The first stop of the keyboard leads past the head of the page.
        seen.page.keyboard.press("Tab")
        assert seen.page.evaluate("document.activeElement.textContent") == "Skip to the servers"
        seen.page.keyboard.press("Enter")
        assert seen.page.evaluate("document.activeElement.id") == "fleet"
        seen.page.keyboard.press("Tab")
        assert seen.page.evaluate("document.activeElement.id") == "filter"
        seen.page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        seen.picture(f"empty-{scheme}")
        assert seen.faults() == []
        assert seen.complaints == []

    async with world(nats, tmp_path, 0) as (daemon, _):
        await chromium.look(url(daemon), script, color_scheme=scheme)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_busy_with_five_hundred_servers(nats: NatsServer, tmp_path: Path, scheme: str) -> None:
    def script(seen: Any) -> None:
        seen.until(BUSY)
        seen.until("document.querySelectorAll('#recent .try, #outcomes > li').length > 3")
        before = count(seen, "#numbers > div:nth-child(4) .value")
        waiting = seen.rows("waiting")
        assert len(waiting) > 100
        work = seen.rows("work")
        assert 0 < len(work) <= 8
        assert {len(row) for row in work} == {4}
        # What is on the screen goes with the fleet.
        seen.until(f"Number(document.querySelector('#numbers > div:nth-child(4) .value').textContent) > {before + 10}")
        assert len(seen.rows("waiting")) < len(waiting)
        seen.picture(f"busy-{scheme}")
        assert seen.page.locator("#plots figure").count() >= 5
        assert re.search(r"runs, mean .*95 % within", seen.text("#plots figure:first-child p"))
        assert seen.page.locator("#plots svg").first.get_attribute("aria-label").startswith("helper: ")
        # A server's own words are words.
        seen.until("document.querySelector('#recent').innerText.includes('not bold')")
        assert HOSTILE in seen.text("#recent")
        assert seen.page.locator("#recent img, #recent b, #recent i").count() == 0
        assert "refused" in seen.text("#outcomes")
        assert seen.faults() == []
        assert seen.complaints == []

    async with world(nats, tmp_path, 500, TROUBLES, workers=8) as (daemon, fleet):
        await fleet.announce()
        await chromium.look(url(daemon), script, color_scheme=scheme)


async def test_a_word_says_its_cause_and_cure_by_keyboard(nats: NatsServer, tmp_path: Path) -> None:
    def script(seen: Any) -> None:
        seen.until("document.querySelectorAll('#outcomes .word').length > 0")
        button = seen.page.locator("#outcomes .word", has_text="refused")
        button.focus()
        seen.page.keyboard.press("Enter")
        box = seen.page.locator("#reason-refused")
        assert box.is_visible()
        assert "Incorrect provision token supplied" in box.inner_text()
        seen.picture("reason")
        assert seen.faults() == []
        seen.page.keyboard.press("Escape")
        assert not box.is_visible()
        # The row is still the same element, so the keyboard is where it was after the next look.
        seen.page.evaluate("window.before = document.querySelector('#updated').textContent")
        seen.until("document.querySelector('#updated').textContent !== window.before")
        assert seen.page.evaluate("document.activeElement.textContent") == "refused"
        assert seen.complaints == []

    async with world(nats, tmp_path, 2, [(Fault(Kind.WRONG_TOKEN), 2)]) as (daemon, fleet):
        await fleet.announce()
        await daemon.until(lambda status: status["outcomes"].get("refused", 0) >= 2)
        await chromium.look(url(daemon), script)


NAMES = "[...document.querySelectorAll('#recent > tr > th')].map(cell => cell.innerText)"


async def test_filter_and_pause(nats: NatsServer, tmp_path: Path) -> None:
    def script(seen: Any) -> None:
        seen.until(f"{NAMES}.length >= 30")
        box = seen.page.get_by_label("Filter by name")
        box.fill("n001")
        seen.until(f"{NAMES}.every(name => name.startsWith('n001')) && new Set({NAMES}).size === 10")
        box.fill("n0003.example.net")
        seen.until(f"{NAMES}.join() === 'n0003.example.net'")
        box.fill("elsewhere.example.org")
        seen.until("!document.querySelector('#found').hidden")
        assert seen.text("#found") == "elsewhere.example.org is not known here."
        assert seen.text("#recent-none") == "No name here has “elsewhere.example.org” in it."
        box.fill("")
        seen.until(f"{NAMES}.length >= 30")
        button = seen.page.get_by_role("button", name="Pause updates")
        button.press("Space")
        assert button.get_attribute("aria-pressed") == "true"
        assert seen.text("#updated").startswith("Paused at ")
        asked = []
        seen.page.on("request", lambda request: asked.append(request.url))
        trio.from_thread.run(trio.sleep, 2.5)  # longer than the page waits between two looks
        assert asked == []
        button.press("Space")
        seen.until("document.querySelector('#updated').textContent.startsWith('Updated ')")
        assert seen.complaints == []

    async with world(nats, tmp_path, 30, workers=30) as (daemon, fleet):
        await fleet.announce()
        await daemon.until(lambda status: len({one["identity"] for one in status["recent"]}) == 30)
        await chromium.look(url(daemon), script)


async def test_degraded(nats: NatsServer, tmp_path: Path) -> None:
    """The broker dies and comes back; then the daemon dies."""

    def script(seen: Any) -> None:
        seen.until(BUSY)
        trio.from_thread.run(nats.kill)
        seen.until("document.body.dataset.state === 'bad'")
        assert seen.text("#headline") == "Not connected to the broker"
        assert seen.text("#said") == "Not connected to the broker"
        assert "Role: working alone" in seen.text("#explained")
        assert seen.page.title().startswith("Not connected to the broker")
        seen.picture("degraded")
        assert seen.faults() == []
        trio.from_thread.run(nats.restart)
        seen.until("document.body.dataset.state === 'good'")
        assert seen.complaints == []
        trio.from_thread.run(daemon.ends)
        seen.until("document.querySelector('#headline').textContent === 'The provisioner does not answer'")
        assert "What you see is from" in seen.text("#explained")
        assert seen.rows("recent")
        assert seen.text("#updated").startswith("No answer since ")
        assert seen.faults() == []
        # The browser itself writes down what it could not load.
        assert {line for line in seen.complaints if "ERR_CONNECTION_REFUSED" not in line} == set()

    async with world(nats, tmp_path, 500, TROUBLES) as (daemon, fleet):
        await fleet.announce()
        await chromium.look(url(daemon), script)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_four_hundred_pixels(nats: NatsServer, tmp_path: Path, scheme: str) -> None:
    def script(seen: Any) -> None:
        seen.until(BUSY)
        seen.until("document.querySelector('#recent').innerText.includes('not bold')")
        assert seen.sideways() == 0
        for region in ("work", "waiting", "recent"):
            wider = (
                f"(box => box.scrollWidth - box.clientWidth)(document.querySelector('#{region}').closest('.scroll'))"
            )
            assert seen.page.evaluate(wider) == 0, region
        assert seen.page.get_by_label("Filter by name").is_visible()
        seen.picture(f"narrow-{scheme}")
        seen.page.locator("#times-title").scroll_into_view_if_needed()
        seen.picture(f"narrow-{scheme}-below")
        assert seen.faults() == []
        assert seen.complaints == []

    async with world(nats, tmp_path, 200, TROUBLES) as (daemon, fleet):
        await fleet.announce()
        await chromium.look(url(daemon), script, color_scheme=scheme, **NARROW)


async def test_a_standby_says_so(nats_jetstream: NatsServer, tmp_path: Path) -> None:
    def script(seen: Any) -> None:
        seen.until("document.querySelector('#headline').textContent === 'Standing by, paused'")
        assert "CHORIA_LEADER_ELECTION" in seen.text("#explained")
        assert seen.complaints == []

    keys: dict[str, Any] = {"leader_election": True, "create_bucket": True}
    async with world(nats_jetstream, tmp_path / "a", 0, **keys) as (leader, _):
        await leader.until(lambda status: status["role"] == "leader")
        choria = "identity = other.example.net\n"
        async with running_daemon(tmp_path / "b", nats_jetstream.port, choria=choria, **keys) as other:
            await other.until(lambda status: status["role"] == "standby")
            await chromium.look(url(other), script)
