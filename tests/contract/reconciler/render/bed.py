"""Charts and requests for tests of renderers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from governor.reconciler.render.request import Layer, Rendered, Request
from governor.values.secret import Secret
from toolchain.repository import REPOSITORY

CHARTS = REPOSITORY / "tests" / "data" / "charts"


def chart(directory: Path, name: str = "sample", **files: str) -> Path:
    """Write a chart with these templates, whose names are without their extension, and return its directory."""
    (directory / name / "templates").mkdir(parents=True)
    (directory / name / "Chart.yaml").write_text(f"apiVersion: v2\nname: {name}\nversion: 1.0.0\n")
    for file, text in files.items():
        (directory / name / "templates" / f"{file}.yaml").write_text(text)
    return directory / name


def request_for(path: Path, *layers: Mapping[str, Any] | str | Layer, **settings: Any) -> Request:
    """Return a request; layers of values are mappings, YAML or complete."""
    return Request(path, f"sha256:{path.name}", "demo", "apps", tuple(map(_layer, layers)), **settings)


def _layer(values: Mapping[str, Any] | str | Layer) -> Layer:
    if isinstance(values, Layer):
        return values
    return Layer(Secret(values if isinstance(values, str) else json.dumps(values)))


def names(rendered: Rendered) -> list[str]:
    """Return kind and name of each object."""
    return [f"{each.object['kind']} {each.object['metadata']['name']}" for each in rendered.objects]


def named(rendered: Rendered, name: str) -> Any:
    """Return the object of that name."""
    return next(each.object for each in rendered.objects if each.object["metadata"]["name"] == name)


def config_map(data: str, name: str = "found") -> str:
    """Return a template of a ConfigMap with this data, in YAML."""
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata:\n{data}\n"
