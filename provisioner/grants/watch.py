"""Runs again after every change of the files, and at an interval: for hosts without systemd's path units.

It looks at the files' inodes each second instead of asking the kernel for events: events are tied to inodes, and go
silent when a host swaps a whole directory or a link to one, which is just what hosts do with secrets. A look at 5,000
secrets takes some 20 ms.
"""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from provisioner.errors import EXIT_UNREACHABLE
from provisioner.grants import files

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
_FIRST_RETRY_SECONDS = 5.0


async def watch(
    run: Callable[[], Awaitable[int]],
    manifest: Path,
    grants: Path,
    *,
    interval: float,
    look_every: float = LOOK_SECONDS,
) -> None:
    """Runs until it is cancelled.

    Args:
        run: one run; gives its exit code.
        manifest: the manifest.
        grants: the directory of the secrets.
        interval: seconds from the end of a run to the next when nothing changes. After a run that did not reach the
            server it is shorter: 5 s, doubled each time.
        look_every: seconds between two looks at the files.
    """
    retry = _FIRST_RETRY_SECONDS
    while True:
        # Looked at before it is read: a change meanwhile is then seen as one.
        seen = await trio.to_thread.run_sync(files.signature, manifest, grants)
        code = await run()
        wait = interval
        if code == EXIT_UNREACHABLE:
            wait, retry = min(retry, interval), retry * 2
        else:
            retry = _FIRST_RETRY_SECONDS
        due = trio.current_time() + wait
        while (left := due - trio.current_time()) > 0:
            await trio.sleep(min(look_every, left))
            if await trio.to_thread.run_sync(files.signature, manifest, grants) != seen:
                log.info("the files have changed")
                break
