"""Helm with a private home directory, and the charts of this repository."""

import functools
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from toolchain import cache
from toolchain.helm import HELM
from toolchain.repository import REPOSITORY

IMAGE = "image.repository=registry.example.com/governor"
SNAPSHOTS = Path(__file__).parent / "snapshots"

Manifest = dict[str, Any]


class Helm:
    """Helm with a private home directory."""

    def __init__(self, home: Path) -> None:
        homes = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        self._environment = {"HOME": str(home), **homes}
        self._program = cache.provide(HELM)

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command and return its outcome, failed or not."""
        argv = [str(self._program), *arguments]
        return subprocess.run(argv, env=self._environment, capture_output=True, text=True, check=False, timeout=60)

    def output(self, *arguments: str) -> str:
        """Run a command and return its output."""
        outcome = self.run(*arguments)
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout


class Chart:
    """One chart with the values that it cannot do without."""

    def __init__(self, name: str, *required: str) -> None:
        self.name = name
        self.path = REPOSITORY / "charts" / name
        self.snapshots = SNAPSHOTS / name
        self.required = (IMAGE, *required)

    def __str__(self) -> str:
        return self.name

    def settings(self, *values: str) -> Iterator[str]:
        """Yield the flags that set the required values and others."""
        return (f"--set={value}" for value in (*self.required, *values))

    def read(self, file: str) -> Any:
        """Return the content of a YAML or JSON file of the chart."""
        return yaml.safe_load((self.path / file).read_text())

    @functools.cache  # noqa: B019 - there are three charts
    def render(self, helm: Helm, *values: str, namespace: str = "fleet") -> str:
        """Return the manifests of a release with the chart's name."""
        return helm.output("template", self.name, str(self.path), f"--namespace={namespace}", *self.settings(*values))

    def compare(self, name: str, text: str) -> None:
        """Compare a text with its snapshot; rewrite the snapshot first if requested."""
        file = self.snapshots / name
        if os.environ.get("GOVERNOR_WRITE_SNAPSHOTS") == "1":
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        assert text == file.read_text(), "if the change is intended, rewrite the snapshots and review the diff"


AGENT = Chart("governor-agent", "namespaces={orders,payments}")
SERVER = Chart("governor-server")
RECONCILER = Chart("governor-reconciler")


def manifests(rendered: str) -> list[Manifest]:
    """Return the manifests of a rendered chart."""
    return [each for each in yaml.safe_load_all(rendered) if each]


def by_kind(rendered: str) -> dict[str, Manifest]:
    """Return the manifests by kind, of which there is one each."""
    found = manifests(rendered)
    kinds = {each["kind"]: each for each in found}
    assert len(kinds) == len(found)
    return kinds


def as_list(items: Iterable[Mapping[str, Any]]) -> str:
    """Return manifests as one document for kubectl."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})
