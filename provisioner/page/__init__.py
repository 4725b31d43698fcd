"""The status page for people: ``/``, a page without a build chain that draws what ``/status`` says, again and again.

Its files are beside this one. They are the same for every service: what the page shows of a fleet it asks for itself,
and puts on the screen as text, never as markup, since servers choose their own words. The policy sent with it lets a
browser load nothing but these files and ``/status``, whatever finds its way onto the page.
"""

from collections.abc import Mapping
from html import escape
from importlib.resources import files

from provisioner.cycle.outcome import KINDS
from provisioner.monitor import Response, Route

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (("Content-Security-Policy", POLICY), ("Referrer-Policy", "no-referrer"))

_TYPES = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_REASONS = "<!-- reasons -->"


def routes(*, loopback_only: bool) -> Mapping[str, Route]:
    """The page ``/`` and the three files that it loads."""

    def fixed(content: bytes, content_type: str) -> Route:
        response = Response(content, content_type, headers=_HEADERS)
        return Route(lambda _: response, loopback_only=loopback_only)

    there = files(__name__)
    html = there.joinpath("index.html").read_text("utf-8").replace(_REASONS, reasons())
    return {
        "/": fixed(html.encode(), "text/html; charset=utf-8"),
        **{f"/{name}": fixed(there.joinpath(name).read_bytes(), kind) for name, kind in _TYPES.items()},
    }


def reasons() -> str:
    """Each reason word with cause and cure, as the boxes that the page opens when the word is pressed."""
    return "\n".join(
        f'<section popover class="reason{" error" if kind.error else ""}" id="reason-{word}" '
        f'aria-labelledby="reason-{word}-title">'
        f'<h2 id="reason-{word}-title">{word}</h2>'
        f"<h3>What happened</h3><p>{_prose(kind.cause)}</p><h3>What to do</h3><p>{_prose(kind.cure)}</p>"
        f'<button type="button" popovertarget="reason-{word}" popovertargetaction="hide">Close</button></section>'
        for word, kind in KINDS.items()
    )


def _prose(text: str) -> str:
    """HTML of a text in which backquotes mark code."""
    parts = escape(text[:1].upper() + text[1:]).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
