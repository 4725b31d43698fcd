"""Tells systemd how a daemon is (``Type=notify``), by datagrams to the socket that systemd names; see sd_notify(3)."""

import os
import socket
import time
from collections.abc import MutableMapping


class Notifier:
    """Sends to the service manager, or does nothing where there is none.

    A notification that can't be delivered is dropped: it must never stop the daemon.

    Args:
        address: the value of NOTIFY_SOCKET: a path, or ``@name`` for an abstract socket; ``""`` for none.
        watchdog: seconds after which systemd kills a silent daemon; None for no watchdog.
    """

    def __init__(self, address: str = "", watchdog: float | None = None) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_interval = None if watchdog is None else watchdog / 2
        """Seconds between two calls of ``alive`` that are wanted, or None."""

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> "Notifier":
        """Takes systemd's variables *out of* the environment: the site's helper, which inherits it, isn't asked."""
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", "")
        ours = microseconds.isdecimal() and int(microseconds) > 0 and pid in {"", str(os.getpid())}
        return cls(address, int(microseconds) / 1e6 if ours else None)

    def ready(self, status: str = "") -> None:
        """The configuration is accepted and the daemon is at work (or at work again, after ``reloading``)."""
        self._send("READY=1", *([f"STATUS={_line(status)}"] if status else []))

    def status(self, text: str) -> None:
        """One line that ``systemctl status`` shows."""
        self._send(f"STATUS={_line(text)}")

    def reloading(self) -> None:
        """The configuration is being read again; ``ready`` ends that."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def alive(self) -> None:
        """Restarts the watchdog's clock."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The daemon is about to end."""
        self._send("STOPPING=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            pass


def _line(text: str) -> str:
    return " ".join(text.split())
