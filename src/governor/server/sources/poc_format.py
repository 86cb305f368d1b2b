"""The file of the original proof of concept, ``runtimes: [{id, data: one Component}]``, as documents. Pure.

What the old format lacks or has too much is decided here, once, for the import and for the served file.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from governor.domain.documents import API_VERSION
from governor.errors import Detail, invalid
from governor.values.trees import Manifest
from governor.yamltext import Parsed

SELECTOR: Final = "runtime-governor.dev/poc-selector"
"""Keeps what the old agent chose pods by; no agent of ours needs it."""

VERSION: Final = "kcp-res-version"
"""Written by hand in the old file, stamped with the digest where the old API is served."""

PROFILE_PREFIX: Final = "poc-"


class Imported(msgspec.Struct, frozen=True):
    """The documents of a file, runtimes apart from their profiles, and what a person should know about them."""

    runtimes: dict[str, Manifest]
    profiles: dict[str, Manifest]
    warnings: tuple[str, ...]

    def documents(self, known_runtimes: Iterable[str]) -> tuple[Manifest, ...]:
        """What to submit: a runtime that is there already stays as it is, labels and all."""
        known = frozenset(known_runtimes)
        new = (tree for name, tree in self.runtimes.items() if name not in known)
        return (*new, *self.profiles.values())


def read(parsed: Iterable[Parsed]) -> Imported:
    """Read the documents of a file; refuses all of it with every line that is wrong."""
    reading = _Reading()
    for item in parsed:
        reading.take(item)
    if reading.problems:
        raise invalid("poc-file", "this is not a file of the proof of concept", reading.problems)
    return Imported(reading.runtimes, reading.profiles, tuple(reading.warnings))


class _Reading:
    """What was found so far."""

    def __init__(self) -> None:
        self.runtimes: dict[str, Manifest] = {}
        self.profiles: dict[str, Manifest] = {}
        self.warnings: list[str] = []
        self.problems: list[Detail] = []

    def take(self, item: Parsed) -> None:
        entries = item.value.get("runtimes") if isinstance(item.value, dict) else None
        if not isinstance(entries, list):
            self._wrong(item, (), "expected `runtimes:` with a list of entries that have an id and data")
            return
        for index, entry in enumerate(entries):
            self._entry(item, index, entry)

    def _entry(self, item: Parsed, index: int, entry: Any) -> None:
        place: tuple[str | int, ...] = ("runtimes", index)
        runtime, data = (entry.get("id"), entry.get("data")) if isinstance(entry, dict) else (None, None)
        if not isinstance(runtime, (str, int)) or isinstance(runtime, bool) or not isinstance(data, dict):
            self._wrong(item, place, "an entry has an id and, under data, one Dapr Component")
            return
        name = str(runtime)
        if name in self.runtimes:
            self._wrong(item, place, f"the id {name!r} is there twice; remove one of them")
            return
        resources = data.get("items") if data.get("kind") == "List" else [data]
        if not isinstance(resources, list) or not all(map(_is_manifest, resources)):
            self._wrong(item, (*place, "data"), "expected a Kubernetes object with metadata and spec")
            return
        self._keep(name, [_component(each) for each in resources])

    def _keep(self, name: str, resources: list[Manifest]) -> None:
        for each in resources:
            if each["kind"] == "Component" and "version" not in each["spec"]:
                each["spec"]["version"] = "v1"
                told = each["metadata"].get("name")
                self.warnings.append(f"runtime {name!r}: component {told!r} has no spec.version; v1 is taken")
        namespaces = {each["metadata"]["namespace"] for each in resources if "namespace" in each["metadata"]}
        place = {"namespaces": sorted(namespaces)} if namespaces else {}
        self.runtimes[name] = _document("Runtime", name, {"platform": "local", **place})
        profile = f"{PROFILE_PREFIX}{name}"
        self.profiles[profile] = _document("Profile", profile, {"selector": {"runtime": name}, "resources": resources})

    def _wrong(self, item: Parsed, path: tuple[str | int, ...], reason: str) -> None:
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
    """The object without what only the old agent understood."""
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
