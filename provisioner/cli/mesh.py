"""``mesh-provisioner``: its commands."""

import sys

from provisioner.cli.program import Command, Program

PROGRAM = Program(
    name="mesh-provisioner",
    summary="Keeps the mesh's registry of who answers which kind of placeholder, and answers what the mesh needs.",
    commands=(
        Command(
            "serve",
            "provisioner.cli.mesh_serve",
            "keep the registry and answer questions until told to stop",
            "mesh-provisioner serve --servers nats://broker.example.net:4222 --user mesh-provisioner "
            "--password-file /etc/mesh-provisioner/password --monitor-port 9182",
        ),
        Command(
            "ask",
            "provisioner.cli.mesh_ask",
            "ask the service what it keeps",
            "mesh-provisioner ask collect --node n1 --collection shell:zsh --servers nats://broker.example.net:4222",
        ),
    ),
)


def main() -> int:
    """The console script."""
    return PROGRAM.main()


if __name__ == "__main__":
    sys.exit(main())
