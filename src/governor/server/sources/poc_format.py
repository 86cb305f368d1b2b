"""Conversion of the proof of concept's file, ``runtimes: [{id, data: one Component}]``, to documents. Pure.

Used by ``governor import`` and by the file source.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from governor.domain.documents import API_VERSION
from governor.errors import Detail, invalid
from governor.values.trees import Manifest
from governor.yamltext import Parsed

SELECTOR: Final = "runtime-governor.dev/poc-selector"
"""Annotation that preserves the pod selector of the original agent; unused by our agents."""

VERSION: Final = "kcp-res-version"
"""Annotation written by hand in the original file; the legacy API sets it to the digest."""

PROFILE_PREFIX: Final = "poc-"


class Imported(msgspec.Struct, frozen=True):
    """Runtime and Profile documents of a file, with warnings about assumed values."""

    runtimes: dict[str, Manifest]
    profiles: dict[str, Manifest]
    warnings: tuple[str, ...]

    def documents(self, known_runtimes: Iterable[str]) -> tuple[Manifest, ...]:
        """Return the documents to submit; existing runtimes are omitted and keep their labels."""
        known = frozenset(known_runtimes)
        new = (tree for name, tree in self.runtimes.items() if name not in known)
        return (*new, *self.profiles.values())


def read(parsed: Iterable[Parsed]) -> Imported:
    """Convert the documents of a file, or raise all lines that are wrong."""
    reader = _Reader()
    for item in parsed:
        reader.add(item)
    if reader.problems:
        raise invalid("poc-file", "this is not a valid file of the proof of concept", reader.problems)
    return Imported(reader.runtimes, reader.profiles, tuple(reader.warnings))


class _Reader:
    """Accumulates documents, warnings and problems."""

    def __init__(self) -> None:
        self.runtimes: dict[str, Manifest] = {}
        self.profiles: dict[str, Manifest] = {}
        self.warnings: list[str] = []
        self.problems: list[Detail] = []

    def add(self, item: Parsed) -> None:
        entries = item.value.get("runtimes") if isinstance(item.value, dict) else None
        if not isinstance(entries, list):
            self._reject(item, (), "expected `runtimes:` with a list of entries that have an id and data")
            return
        for index, entry in enumerate(entries):
            self._entry(item, index, entry)

    def _entry(self, item: Parsed, index: int, entry: Any) -> None:
        place: tuple[str | int, ...] = ("runtimes", index)
        runtime, data = (entry.get("id"), entry.get("data")) if isinstance(entry, dict) else (None, None)
        if not isinstance(runtime, (str, int)) or isinstance(runtime, bool) or not isinstance(data, dict):
            self._reject(item, place, "an entry has an id and, under data, one Dapr Component")
            return
        name = str(runtime)
        if name in self.runtimes:
            self._reject(item, place, f"the id {name!r} occurs twice; remove one of them")
            return
        resources = data.get("items") if data.get("kind") == "List" else [data]
        if not isinstance(resources, list) or not all(map(_is_manifest, resources)):
            self._reject(item, (*place, "data"), "expected a Kubernetes object with metadata and spec")
            return
        self._add_runtime(name, [_component(each) for each in resources])

    def _add_runtime(self, name: str, resources: list[Manifest]) -> None:
        for each in resources:
            if each["kind"] == "Component" and "version" not in each["spec"]:
                each["spec"]["version"] = "v1"
                component = each["metadata"].get("name")
                self.warnings.append(f"runtime {name!r}: component {component!r} has no spec.version; v1 is assumed")
        namespaces = {each["metadata"]["namespace"] for each in resources if "namespace" in each["metadata"]}
        scope = {"namespaces": sorted(namespaces)} if namespaces else {}
        self.runtimes[name] = _document("Runtime", name, {"platform": "local", **scope})
        profile = f"{PROFILE_PREFIX}{name}"
        self.profiles[profile] = _document("Profile", profile, {"selector": {"runtime": name}, "resources": resources})

    def _reject(self, item: Parsed, path: tuple[str | int, ...], reason: str) -> None:
        self.problems.append(Detail(reason, file=item.source, line=item.line_of(path)))


def _is_manifest(data: Any) -> bool:
    metadata = data.get("metadata") if isinstance(data, dict) else None
    return (
        isinstance(metadata, dict)
        and isinstance(metadata.get("namespace", ""), str)
        and isinstance(metadata.get("annotations") or {}, dict)
        and isinstance(data.get("kind"), str)
        and isinstance(data.get("spec"), dict)
    )


def _component(data: Manifest) -> Manifest:
    """Return the object without the fields that only the original agent understood."""
    items = data["spec"].get("metadata")
    selectors = list(_selectors(items))
    annotations = {key: text for key, text in (data["metadata"].get("annotations") or {}).items() if key != VERSION}
    spec = dict(data["spec"])
    if selectors:
        annotations[SELECTOR] = str(selectors[0].get("value", ""))
        spec["metadata"] = [each for each in items if each not in selectors]
    metadata = {key: value for key, value in data["metadata"].items() if key != "annotations"}
    if annotations:
        metadata["annotations"] = annotations
    return {**data, "metadata": metadata, "spec": spec}


def _selectors(items: Any) -> Iterator[Manifest]:
    for each in items if isinstance(items, list) else ():
        if isinstance(each, dict) and each.get("name") == "selector":
            yield each


def _document(kind: str, name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
