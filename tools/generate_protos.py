"""Derives Python messages and their types from the ``.proto`` files of the package, with the locked protoc."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from toolchain.errors import TestbedError
from toolchain.wheels import REPOSITORY

_SOURCES: Final = Path("src")


def outputs() -> dict[Path, str]:
    """``x_pb2.py`` and ``x_pb2.pyi`` beside each ``x.proto``."""
    protos = sorted(path.relative_to(REPOSITORY / _SOURCES) for path in (REPOSITORY / _SOURCES).rglob("*.proto"))
    with tempfile.TemporaryDirectory(prefix="governor-protos-") as place:
        _compile(protos, Path(place))
        made = [proto.with_name(f"{proto.stem}_pb2{suffix}") for proto in protos for suffix in (".py", ".pyi")]
        return {_SOURCES / path: (Path(place) / path).read_text(encoding="utf-8") for path in made}


def _compile(protos: list[Path], place: Path) -> None:
    options = ["--proto_path=.", f"--python_out={place}", f"--pyi_out={place}"]
    argv = [sys.executable, "-m", "grpc_tools.protoc", *options, *map(str, protos)]
    result = subprocess.run(argv, cwd=REPOSITORY / _SOURCES, capture_output=True, text=True, check=False)
    if result.returncode:
        raise TestbedError(f"protoc refused the .proto files: {result.stderr.strip()}")
