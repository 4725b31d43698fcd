"""What asks the site's helper, as ``helper_mode`` says; for the daemon and the one-shot commands alike."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from provisioner.config import Config
from provisioner.cycle.steps import RunHelper
from provisioner.helper.process import run_helper
from provisioner.helper.stream import StreamHelpers


@asynccontextmanager
async def helper_runner(config: Config) -> AsyncIterator[RunHelper]:
    """Runs helpers while the context is open; none is left of them after it."""
    if config.helper_mode == "stream":
        async with StreamHelpers(config.helper_processes or config.workers) as helpers:
            yield helpers
    else:
        yield run_helper
