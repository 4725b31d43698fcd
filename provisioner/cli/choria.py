"""``choria-provisioner``: its commands."""

import sys

from provisioner.cli.program import Command, Program

PROGRAM = Program(
    name="choria-provisioner",
    summary="Configures Choria Servers that have no configuration yet, as the site's helper says.",
    commands=(
        Command(
            "run",
            "provisioner.cli.run",
            "provision servers until told to stop",
            "choria-provisioner run --config /etc/choria-provisioner/choria-provisioner.yaml",
        ),
        Command(
            "check",
            "provisioner.cli.check",
            "look at everything before the daemon starts, and say what to do",
            "choria-provisioner check --config /etc/choria-provisioner/choria-provisioner.yaml",
        ),
        Command(
            "helper",
            "provisioner.cli.try_helper",
            "try the site's helper without a server: its time, its answer, every complaint",
            "choria-provisioner helper --command '/opt/prov/helper.py --site london' --fleet 300",
        ),
        Command(
            "provision",
            "provisioner.cli.provision",
            "provision one or some servers now, in the foreground",
            "choria-provisioner provision --config provisioner.yaml --dry-run n1.example.net",
        ),
        Command(
            "status",
            "provisioner.cli.status_command",
            "show the running daemon: its role, who is at work, who waits and why, the last outcomes",
            "choria-provisioner status --config /etc/choria-provisioner/choria-provisioner.yaml",
        ),
        Command(
            "demo",
            "provisioner.cli.demo",
            "show it at work on an embedded NATS server and a simulated fleet",
            "choria-provisioner demo --servers 50",
        ),
        Command(
            "simulate",
            "provisioner.cli.simulate",
            "connect a simulated fleet to a broker, to try a helper or a set-up",
            "choria-provisioner simulate --servers 300 --fault silent=5 --fault slow:configure=3",
        ),
    ),
    default="run",
)


def main() -> int:
    """The console script."""
    return PROGRAM.main()


if __name__ == "__main__":
    sys.exit(main())
