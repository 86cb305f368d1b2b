"""Generates files from other sources: ``make generate`` writes them, ``make check`` compares them.

Each generator is a module beside this one with ``outputs() -> dict[Path, str]``. A file that cannot be generated is an
error; none is skipped.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # not on the path when run as a file

from governor.errors import GovernorError
from toolchain.errors import TestbedError
from toolchain.repository import REPOSITORY
from tools import (
    generate_charts,
    generate_cli,
    generate_crds,
    generate_dapr,
    generate_kinds,
    generate_openapi,
    generate_permissions,
    generate_protos,
)

GENERATORS = (
    generate_charts,
    generate_cli,
    generate_crds,
    generate_dapr,
    generate_kinds,
    generate_openapi,
    generate_permissions,
    generate_protos,
)


def main() -> int:
    """Write every generated file, or with ``--check`` print those that differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a generated file is stale")
    check: bool = parser.parse_args().check
    try:
        outputs = {path: text for generator in GENERATORS for path, text in generator.outputs().items()}
    except (GovernorError, TestbedError) as error:
        print(f"cannot generate files: {error}", file=sys.stderr)
        return 1
    stale = [path for path, text in outputs.items() if _read(path) != text]
    for path in stale:
        print(f"{'stale' if check else 'written'}: {path}")
        if not check:
            _write(path, outputs[path])
    if check and stale:
        print("run `make generate` and commit the result", file=sys.stderr)
    return int(check and bool(stale))


def _read(path: Path) -> str | None:
    place = REPOSITORY / path
    return place.read_text(encoding="utf-8") if place.exists() else None


def _write(path: Path, text: str) -> None:
    place = REPOSITORY / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
