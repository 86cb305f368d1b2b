"""``python -m testbed ensure NAME...``: provide servers and print which executables are used."""

import argparse
import sys

from testbed.recipes import RECIPES, provide
from toolchain.errors import TestbedError


def main() -> int:
    """Provide what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m testbed", description="Real servers of pinned versions.")
    ensure = parser.add_subparsers(required=True).add_parser("ensure", help="find or build servers, print their paths")
    ensure.add_argument("names", nargs="+", choices=RECIPES, metavar="NAME", help=", ".join(RECIPES))
    try:
        for name, path in provide(parser.parse_args().names).items():
            print(f"{name}: {path}")
    except TestbedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
