"""The status page as a browser gets it from a daemon; what is on the screen is tested in ``tests/browser``."""

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

from provisioner import page
from provisioner.bus.nats import Options, open_nats
from provisioner.cycle.outcome import KINDS
from provisioner.leader import lead, sharing
from provisioner.metrics import REFUSALS
from provisioner.monitor import Request
from provisioner.simulator.embedded import NatsServer
from provisioner.simulator.faults import Fault, Kind
from provisioner.simulator.fleet import make_servers, open_fleet
from tests.integration.daemon import running_daemon
from tests.integration.test_monitor import exchange, get

FILES = Path(page.__file__).parent
SCRIPT = (FILES / "page.js").read_text()
ROUTES = page.routes(loopback_only=True)
HTML = ROUTES["/"].answer(Request("/")).body.decode()


class Tags(HTMLParser):
    """Every tag with its attributes, and the text inside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem:
            self.inline += data


TAGS = Tags(HTML)


async def test_a_daemon_serves_the_page_with_its_policy(nats: NatsServer, tmp_path: Path) -> None:
    async with running_daemon(tmp_path, nats.port) as daemon:
        await daemon.status()
        for path, kind in {
            "/": "text/html; charset=utf-8",
            "/page.js": "text/javascript; charset=utf-8",
            "/page.css": "text/css; charset=utf-8",
            "/icon.svg": "image/svg+xml",
        }.items():
            status, headers, body = await exchange(daemon.port, get(path))
            assert (status, headers["content-type"], headers["content-security-policy"]) == (200, kind, page.POLICY)
            assert headers["x-content-type-options"] == "nosniff"
            assert body == ROUTES[path].answer(Request(path)).body
            assert b"s3cret" not in body
            # A stranger's name for this machine shows nothing (DNS rebinding).
            assert (await exchange(daemon.port, get(path, host="evil.example.net")))[0] == 403


async def test_the_page_is_for_everybody_who_reaches_the_port_only_when_told_so(
    nats: NatsServer, tmp_path: Path
) -> None:
    async with running_daemon(tmp_path, nats.port, status_listen="all") as daemon:
        await daemon.status()
        assert (await exchange(daemon.port, get("/", host="prov.example.net")))[0] == 200
    assert {route.loopback_only for route in ROUTES.values()} == {True}


async def test_the_status_lists_only_servers_with_a_part_in_their_names(nats: NatsServer, tmp_path: Path) -> None:
    """Nobody answers for these, and one worker is busy with the first: the others wait."""

    async def resolve() -> list[str]:
        return [nats.url]

    made = make_servers(25, version=1, token="s3cret", now=time.time(), faults=[(Fault(Kind.SILENT), 25)])
    async with open_nats(resolve, Options(name="fleet")) as bus:
        await bus.wait_connected()
        async with open_fleet(bus, made.servers), running_daemon(tmp_path, nats.port, workers=1) as daemon:
            whole = await daemon.until(lambda status: status["servers"]["waiting"] == 24)
            assert len(whole["waiting"]) == 24
            (busy,) = (one["identity"] for one in whole["at_work"])
            assert b"s3cret" not in (await daemon.get("/status"))[1]
            found = json.loads((await daemon.get("/status?name=n002"))[1])
            listed = {one["identity"] for part in ("waiting", "at_work") for one in found[part]}
            assert listed == {f"n002{number}.example.net" for number in range(6)}
            assert found["servers"]["waiting"] == 24
            found = json.loads((await daemon.get(f"/status?name={busy}"))[1])
            assert [one["identity"] for one in found["at_work"]] == [busy]
            assert found["waiting"] == []


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    rules = dict(rule.split(" ", 1) for rule in page.POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert set(rules.values()) == {"'none'", "'self'"}


def test_nothing_on_the_page_is_inline_or_from_elsewhere() -> None:
    assert TAGS.inline == ""
    for tag, attributes in TAGS.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        for name in ("src", "href"):
            assert not re.match(r"(\w+:)?//|\w+:", attributes.get(name) or ""), attributes
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", SCRIPT)
    assert not re.search(r"url\(|@import", (FILES / "page.css").read_text())


def test_each_reason_has_its_box_with_cause_and_cure() -> None:
    boxes = [attributes["id"] for tag, attributes in TAGS.tags if "popover" in attributes]
    assert boxes == [f"reason-{word}" for word in KINDS]
    assert "Compare the signer; a server with a foreign token must not be provisioned." in HTML
    assert "Is <code>jwt_verify_cert</code> the key that signed it?" in HTML
    assert "<!-- reasons -->" not in HTML


def test_each_role_and_refusal_has_words_on_the_page() -> None:
    text = f"{lead.Lead.role.__doc__} {sharing.Sharing.role.__doc__}"
    roles = set(re.findall(r"``(\w+)``", text))
    assert roles == {"alone", "leader", "standby", "unknown", "sharing", "aside"}
    (said,) = re.findall(r"const ROLES = \{(.*?)\n\};", SCRIPT, re.DOTALL)
    assert set(re.findall(r"^  (\w+):", said, re.MULTILINE)) == roles
    (said,) = re.findall(r"const REFUSALS = \{(.*?)\n\};", SCRIPT, re.DOTALL)
    assert set(re.findall(r"^  (\w+):", said, re.MULTILINE)) == set(REFUSALS)


def test_each_part_that_the_script_looks_for_is_there() -> None:
    ids = {attributes["id"] for _, attributes in TAGS.tags if "id" in attributes}
    assert len([1 for _, attributes in TAGS.tags if "id" in attributes]) == len(ids)
    asked = set(re.findall(r'\$\("([\w-]+)"\)', SCRIPT))
    assert asked <= ids
    assert {"work", "waiting", "recent", "numbers", "plots"} <= ids
