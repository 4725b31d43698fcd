"""A program that provisions with a Python function as its helper. Run it: it uses a bus in memory and one server."""

from functools import partial
from pathlib import Path

import trio

from provisioner import Config, MemoryBroker, Secret, in_process, serve
from provisioner.choria.v1 import V1
from provisioner.fleet.crew import Ended
from provisioner.testing import ScriptedNode


def decide(server: dict) -> dict:
    """What a helper would print, for what a helper would read."""
    return {"configuration": {"identity": server["identity"], "plugin.choria.server.provision": "0"}}


async def main() -> None:
    broker = MemoryBroker()
    config = Config(
        path=Path("embedded"),
        workers=4,
        interval=60.0,
        interval_text="1m",
        helper=("in-process",),
        token=Secret("s3cret"),
        site="example",
    )
    done = trio.Event()

    def on_end(ended: Ended) -> None:
        print(ended.finished.identity, ended.finished.outcome)
        done.set()

    async with ScriptedNode("n1.example.net").on(broker.connect()), trio.open_nursery() as nursery:
        service = await nursery.start(
            partial(
                serve,
                config,
                identity="provisioner.example.net",
                bus=broker.connect(),
                wire=V1("choria=provisioner.example.net"),
                run_helper=in_process(decide),
                on_end=on_end,
            )
        )
        await done.wait()
        print(service.history.totals)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
