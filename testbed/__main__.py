"""``python -m testbed ensure NAME...``: provide servers and print which executables are used."""

import argparse
import signal
import sys

from testbed.recipes import SERVERS, fetch, provide
from toolchain.errors import TestbedError


def main() -> int:
    """Provide the servers that the command line names, or download what building them needs."""
    parser = argparse.ArgumentParser(prog="python -m testbed", description="Real servers of pinned versions.")
    commands = parser.add_subparsers(required=True, dest="command")
    ensure = commands.add_parser("ensure", help="find or build servers, print their paths")
    ensure.add_argument("names", nargs="+", choices=SERVERS, metavar="NAME", help=", ".join(SERVERS))
    commands.add_parser("fetch", help="download what recipes need (used by `ensure`)").add_argument("keys", nargs="+")
    arguments = parser.parse_args()
    try:
        if arguments.command == "fetch":
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the running step, too
            fetch(arguments.keys)
            return 0
        for name, path in provide(arguments.names).items():
            print(f"{name}: {path}")
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
