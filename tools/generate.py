"""Derives the files that are made from other sources: ``make generate`` writes them, ``make check`` compares them.

Each generator is a module beside this one with ``outputs() -> dict[Path, str]``. Nothing is skipped: what cannot be
derived is an error.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, the repository is not on the path

from governor.errors import GovernorError
from toolchain.errors import TestbedError
from toolchain.wheels import REPOSITORY
from tools import generate_cli, generate_dapr, generate_openapi, generate_protos

GENERATORS = (generate_cli, generate_dapr, generate_openapi, generate_protos)


def main() -> int:
    """Write every derived file, or with ``--check`` name those that differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a derived file is stale")
    check: bool = parser.parse_args().check
    try:
        outputs = {path: text for generator in GENERATORS for path, text in generator.outputs().items()}
    except (GovernorError, TestbedError) as error:
        print(f"cannot derive files: {error}", file=sys.stderr)
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
