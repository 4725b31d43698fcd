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
    ),
    default="run",
)


def main() -> int:
    """The console script."""
    return PROGRAM.main()


if __name__ == "__main__":
    sys.exit(main())
