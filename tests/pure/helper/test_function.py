"""A Python function in the place of the site's program."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio
import trio.testing

from provisioner.errors import HelperBadReply, HelperSilent, HelperTooMuch, HelperTooSlow
from provisioner.helper.contract import HelperReply, decode_reply, encode_input
from provisioner.helper.function import in_process

TOLD = encode_input(identity="n1", csr=None, ed25519_pubkey=None, inventory='{"facts":{}}', jwt=None)


def plain(server: dict[str, Any]) -> Mapping[str, Any]:
    return {"configuration": {"identity": server["identity"], "inventory": server["inventory"]}}


async def awaiting(server: dict[str, Any]) -> Mapping[str, Any]:
    await trio.lowlevel.checkpoint()
    return plain(server)


@pytest.mark.parametrize("decide", [plain, awaiting])
async def test_an_answer(decide: Any) -> None:
    run = await in_process(decide)((), TOLD, identity="n1")
    assert decode_reply(run.stdout) == HelperReply(configuration={"identity": "n1", "inventory": '{"facts":{}}'})
    assert run.stderr == ""


async def test_too_slow(autojump_clock: trio.testing.MockClock) -> None:
    async def never(server: dict[str, Any]) -> Mapping[str, Any]:
        await trio.sleep_forever()
        return {}

    with pytest.raises(HelperTooSlow, match="after 10 s"):
        await in_process(never)((), TOLD)
    assert trio.current_time() == pytest.approx(10)


async def test_none_is_silence() -> None:
    with pytest.raises(HelperSilent, match="zero bytes received"):
        await in_process(lambda server: None)((), TOLD)


@pytest.mark.parametrize("answer", [{"a": float("nan")}, {"a": {1, 2}}, {"a": "\ud800"}])
async def test_what_json_can_not_say(answer: Any) -> None:
    with pytest.raises(HelperBadReply, match="can't be written as JSON"):
        await in_process(lambda server: answer)((), TOLD)


async def test_too_much() -> None:
    with pytest.raises(HelperTooMuch):
        await in_process(lambda server: {"msg": "x" * (1 << 20)})((), TOLD)


async def test_its_own_errors_pass() -> None:
    def broken(server: dict[str, Any]) -> Mapping[str, Any]:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await in_process(broken)((), TOLD)
