"""A real, headless Chromium on a page: what a script sees there, every complaint of the console, every fault of axe."""

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from typing import Any

import trio
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import ConsoleMessage, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

PATIENCE = 30_000
"""Milliseconds for anything to come onto the screen: generous, for a machine that is busy."""


class Seen:
    """One page, open in a browser of its own."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(url)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)

    def text(self, selector: str) -> str:
        """What stands there."""
        return self.page.locator(selector).inner_text()

    def until(self, expression: str) -> None:
        """Waits until a JavaScript expression holds on the page."""
        # `wait_for_function` would evaluate a string in the page, which the page's policy forbids.
        ends = time.monotonic() + PATIENCE / 1000
        while not self.page.evaluate(expression):
            assert time.monotonic() < ends, f"{expression}: never, the page says: {self.text('body')[:2000]}"
            self.page.wait_for_timeout(50)

    def rows(self, table: str) -> list[list[str]]:
        """The cells of a table's rows, as they are shown."""
        found: list[list[str]] = self.page.eval_on_selector_all(
            f"#{table} > tr", "rows => rows.map(row => [...row.children].map(cell => cell.innerText))"
        )
        return found

    def faults(self) -> list[str]:
        """What axe finds wrong: labels, landmarks, contrast, roles."""
        found = Axe().run(self.page)
        return [
            f"{one['id']}: {one['help']}: {node['target']}"
            for one in found.response["violations"]
            for node in one["nodes"]
        ]

    def picture(self, name: str) -> None:
        """Keeps a picture, when the run asks for pictures."""
        if directory := os.environ.get("PAGE_PICTURES"):
            self.page.screenshot(path=f"{directory}/{name}.png")

    def sideways(self) -> int:
        """Pixels by which the page is wider than its window."""
        wider: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return wider


async def look(url: str, script: Callable[[Seen], None], **window: Any) -> None:
    """Opens ``url`` and runs ``script`` in a thread; it reaches the test's event loop by ``trio.from_thread``.

    Args:
        url: the page.
        script: what is done and asserted there.
        **window: of Playwright's ``new_context``: ``viewport``, ``color_scheme`` and so on.
    """
    window.setdefault("viewport", {"width": 1280, "height": 900})

    def run() -> None:
        # trio-asyncio gives its own event loops to threads without a policy of their own; Playwright needs a plain one.
        asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=CHROMIUM, headless=True, args=FLAGS, chromium_sandbox=False
                )
                try:
                    script(Seen(browser.new_context(**window).new_page(), url))
                finally:
                    browser.close()
        finally:
            asyncio.set_event_loop_policy(None)

    await trio.to_thread.run_sync(run)
