"""What a newcomer does: the commands and files of ``docs/start.md``, as they stand there, with free ports."""

import json
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from tests.integration.daemon import free_port
from tests.integration.test_monitor import exchange, get

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "start.md").read_text()
HEADING = "## Try your own helper on a fleet that isn't there\n"


def blocks(language: str) -> list[str]:
    section = PAGE.split(HEADING)[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(120)
async def test_a_newcomers_walk(tmp_path: Path) -> None:
    ports = {"4222": await free_port(), "9999": await free_port()}

    def here(text: str) -> str:
        for port, free in ports.items():
            text = re.sub(rf"\b{port}\b", str(free), text)
        return text.replace("/tmp/try", str(tmp_path / "try")).replace(".venv/bin", str(Path(sys.executable).parent))

    prepare, start = map(here, blocks("sh"))
    subprocess.run(["sh", "-ec", prepare], cwd=ROOT, check=True)
    (tmp_path / "try" / "try.yaml").write_text(here(*blocks("yaml")))
    (tmp_path / "try" / "try.cfg").write_text(here(*blocks("ini")))
    broker, fleet, daemon = map(shlex.split, start.splitlines())

    with ExitStack() as processes, trio.fail_after(90):

        def begin(argv: list[str]) -> subprocess.Popen[bytes]:
            """Once started, it ends with the test."""
            output = processes.enter_context((tmp_path / f"{Path(argv[0]).name}-{argv[1]}").open("wb"))
            process = subprocess.Popen(argv, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            processes.callback(process.wait)
            processes.callback(process.kill)
            return process

        begin(broker)
        await listening(ports["4222"])
        simulated = begin(fleet)
        while not (tmp_path / "try" / "signer.pem").exists():
            await trio.sleep(0.02)
        begin(daemon)
        await listening(ports["9999"])
        while (await status(ports["9999"]))["outcomes"].get("provisioned", 0) < 20:
            await trio.sleep(0.05)
        assert (await exchange(ports["9999"], get("/")))[0] == 200
        assert await trio.to_thread.run_sync(simulated.wait) == 0
        said = (tmp_path / "choria-provisioner-simulate").read_text()
        assert "20 servers: 20 configured (at most 1 times), 20 restarted" in said


async def status(port: int) -> dict[str, dict[str, int]]:
    _, _, body = await exchange(port, get("/status"))
    found = json.loads(body)
    assert isinstance(found, dict)
    return found


async def listening(port: int) -> None:
    """Waits until somebody does."""
    while True:
        try:
            await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
        except OSError:
            await trio.sleep(0.02)
        else:
            return
