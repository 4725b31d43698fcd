"""``postgres-provisioner``: its commands."""

import sys

from provisioner.cli.program import Command, Program

PROGRAM = Program(
    name="postgres-provisioner",
    summary="Makes delivered credentials into PostgreSQL logins that work, rotate and end.",
    commands=(
        Command(
            "run",
            "provisioner.cli.postgres_run",
            "make the server as the manifest says",
            "postgres-provisioner run --manifest /var/lib/postgres/grants/mesh.json --grants /var/lib/postgres/grants",
        ),
        Command(
            "demo",
            "provisioner.cli.postgres_demo",
            "raise a throw-away PostgreSQL and show three consumers come, rotate and go",
            "postgres-provisioner demo",
        ),
    ),
    default="run",
)


def main() -> int:
    """The console script."""
    return PROGRAM.main()


if __name__ == "__main__":
    sys.exit(main())
