"""``choria-provisioner run``: the daemon."""

import argparse
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the reference (seed 3)."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the provisioner's YAML file")
    parser.add_argument(
        "--choria-config",
        type=Path,
        metavar="FILE",
        help="the Choria client configuration (default: ~/.choriarc, ~/.mcollective, /etc/choria/client.conf, "
        "/usr/local/etc/choria/client.conf, the first that exists)",
    )
    parser.add_argument("--pid", type=Path, metavar="FILE", help="write the process id there; removed at the end")


def main(arguments: argparse.Namespace) -> int:
    """Runs until told to stop."""
    raise NotImplementedError
