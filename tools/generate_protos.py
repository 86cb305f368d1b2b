"""Generates Python messages and their types from the package's ``.proto`` files, with the locked protoc."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from toolchain.errors import TestbedError
from toolchain.repository import REPOSITORY

_SOURCES: Final = Path("src")


def outputs() -> dict[Path, str]:
    """Return ``x_pb2.py`` and ``x_pb2.pyi`` for each ``x.proto``, by their paths in the repository."""
    protos = sorted(path.relative_to(REPOSITORY / _SOURCES) for path in (REPOSITORY / _SOURCES).rglob("*.proto"))
    with tempfile.TemporaryDirectory(prefix="governor-protos-") as directory:
        _compile(protos, Path(directory))
        generated = [proto.with_name(f"{proto.stem}_pb2{suffix}") for proto in protos for suffix in (".py", ".pyi")]
        return {_SOURCES / path: (Path(directory) / path).read_text(encoding="utf-8") for path in generated}


def _compile(protos: list[Path], directory: Path) -> None:
    options = ["--proto_path=.", f"--python_out={directory}", f"--pyi_out={directory}"]
    argv = [sys.executable, "-m", "grpc_tools.protoc", *options, *map(str, protos)]
    result = subprocess.run(argv, cwd=REPOSITORY / _SOURCES, capture_output=True, text=True, check=False)
    if result.returncode:
        raise TestbedError(f"protoc rejected the .proto files: {result.stderr.strip()}")
