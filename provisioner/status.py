"""What a service says of itself: health, readiness and everything an operator asks about servers. Holds no secret."""

from collections.abc import Mapping
from time import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import trio

from provisioner import strictjson
from provisioner.monitor import Request, Response, Route
from provisioner.version import __version__

if TYPE_CHECKING:
    from provisioner.service import Service

WAITING_SHOWN = 500
"""Waiting servers listed; the count is of all."""

UNREADY_AFTER = 15.0
"""Seconds without a connection after which ``/readyz`` says no: a short reconnect alarms nobody."""


def snapshot(service: "Service", part: str = "") -> dict[str, Any]:
    """The state of a service as one JSON object: what ``/status`` shows, and ``choria-provisioner status``.

    Args:
        service: what is told about.
        part: only servers with this in their names are listed; numbers are of all.
    """
    now = trio.current_time()
    term = service.term
    history = service.history
    work: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    counts = {"waiting": 0, "working": 0, "resting": 0}
    if term is not None:
        counts = term.crew.roster.counts()
        work = [
            {
                "identity": one.identity,
                "step": one.step,
                "age": round(now - one.since, 3),
                "step_age": round(now - one.step_since, 3) if one.step else 0.0,
            }
            for one in term.crew.at_work.values()
            if part in one.identity
        ]
        for one in term.crew.roster.waiting_servers(now, part):
            if len(waiting) == WAITING_SHOWN:
                break
            last = history.last(one.identity)
            waiting.append(
                {
                    "identity": one.identity,
                    "age": round(one.age, 3),
                    "source": one.source,
                    "last": last.outcome if last else "",
                }
            )
    return {
        "version": __version__,
        "identity": service.identity,
        "site": service.config.site,
        "started_at": round(service.started_at, 3),
        "now": round(time(), 3),
        **condition(service),
        "workers": service.config.workers,
        "interval": service.config.interval,
        "servers": counts,
        "at_work": work,
        "waiting": waiting,
        "outcomes": dict(sorted(history.totals.items())),
        "refused_sightings": service.metrics.refusals(),
        "timings": service.metrics.timings(),
        "tasks": trio.lowlevel.current_statistics().tasks_living,
        "recent": [finished.as_dict() for finished in history.recent if part in finished.identity],
    }


def one_server(service: "Service", identity: str) -> dict[str, Any]:
    """One server: ``waiting``, ``working``, ``resting`` or ``unknown``, and its last outcome, if that is remembered."""
    state = None if service.term is None else service.term.crew.roster.state(identity)
    last = service.history.last(identity)
    return {"identity": identity, "state": state or "unknown", "last": last.as_dict() if last else None}


def condition(service: "Service") -> dict[str, Any]:
    """Connected or not, acting or not, and why: the words that log, page and systemd share."""
    return {
        "connected": service.bus.connected,
        "broker": service.bus.url,
        "connection_error": "" if service.bus.connected else service.bus.last_error,
        "role": service.lead.role,
        "leader": service.acting,
        "paused": not service.acting,
        "election": service.lead.detail,
    }


def sentence(service: "Service") -> str:
    """The same in one line, for systemd."""
    link = f"connected to {service.bus.url}" if service.bus.connected else f"not connected: {service.bus.last_error}"
    counts = service.term.crew.roster.counts() if service.term is not None else None
    servers = f", {counts['waiting']} waiting, {counts['working']} at work" if counts else ", paused"
    return f"{service.lead.role}, {link}{servers}"


def routes(service: "Service", *, loopback_only: bool) -> Mapping[str, Route]:
    """The pages ``/healthz``, ``/readyz`` and ``/status``."""

    def ready(_: Request) -> Response:
        unready = service.disconnected_for() > UNREADY_AFTER
        body = {"ready": not unready, **condition(service)}
        return _json(body, status=503 if unready else 200)

    def shown(request: Request) -> Response:
        asked = parse_qs(request.query)
        if "server" in asked:
            return _json({"version": __version__, "server": one_server(service, asked["server"][0])})
        return _json(snapshot(service, asked.get("name", [""])[0]))

    return {
        "/healthz": Route(lambda _: Response(b"ok\n")),
        "/readyz": Route(ready),
        "/status": Route(shown, loopback_only=loopback_only),
    }


def _json(value: object, status: int = 200) -> Response:
    return Response(strictjson.dumps(value).encode() + b"\n", "application/json", status=status)
