"""The agent's directories: what counts as a change by another program, and what the journal keeps."""

import os
from pathlib import Path

import pytest

from governor.agent.platforms.local.directory import ResourceDirectory
from governor.agent.platforms.local.plan import Observed, Plan, plan
from governor.agent.platforms.local.storage import Journal, Storage
from governor.domain.bundles import Delivery
from governor.yamltext import dump
from tests.unit.agent.platforms.local.test_plan import component, delivery


class Bed:
    """Directories that a plan is applied to."""

    def __init__(self, tmp_path: Path) -> None:
        self.storage = Storage(tmp_path / "state")
        self.storage.prepare()
        self.resources = tmp_path / "resources"
        self.directory = ResourceDirectory(self.resources, self.storage)
        self.directory.prepare()

    def apply(self, delivered: Delivery) -> None:
        journal = self.directory.journal()
        made = plan(delivered, Observed("default", self.directory.read_files(), journal, ()))
        assert isinstance(made, Plan)
        self.directory.apply(made, self.directory.stage(made), journal)


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    made = Bed(tmp_path)
    made.apply(delivery(component("one"), component("two")))
    return made


def test_what_the_agent_writes_and_removes_itself_is_no_change(bed: Bed) -> None:
    assert not bed.directory.has_changed()
    bed.apply(delivery(component("one", "b")))
    assert not bed.directory.has_changed()
    assert [each.name for each in bed.resources.iterdir()] == ["component.one.yaml"]


def test_an_edited_a_deleted_and_a_foreign_file_are_changes_until_they_are_read(bed: Bed) -> None:
    changes = (
        lambda: (bed.resources / "component.one.yaml").write_text("edited"),
        (bed.resources / "component.two.yaml").unlink,
        lambda: (bed.resources / "foreign.yaml").write_text("kind: Component"),
    )
    for change in changes:
        change()
        assert bed.directory.has_changed()
        bed.directory.read_files()
        assert not bed.directory.has_changed()


def test_files_that_no_sidecar_loads_are_no_change(bed: Bed) -> None:
    (bed.resources / ".component.one.yaml.0123abcd.tmp").write_text("staged")
    assert not bed.directory.has_changed()


@pytest.mark.parametrize(
    ("name", "is_loaded"),
    [("X.YAML", True), ("x.Yml", True), (".yaml", True), ("x.json", False), ("x.yaml.bak", False), ("yaml", False)],
)
def test_a_file_is_read_if_daprd_loads_it(bed: Bed, name: str, is_loaded: bool) -> None:
    """daprd compares the suffix in lower case (``IsYaml`` in dapr/kit), and loads no JSON."""
    (bed.resources / name).write_text(dump(component("foreign")))
    assert bed.directory.has_changed() == is_loaded
    assert (f"resources/{name}" in bed.directory.read_files()) == is_loaded


def test_the_readable_documents_of_a_file_count_as_daprd_decodes_each_alone(bed: Bed) -> None:
    (bed.resources / "x.yaml").write_text(f"a: [\n--- # next\n{dump(component('foreign'))}")
    assert bed.directory.read_files()["resources/x.yaml"].manifests == (component("foreign"),)


def test_a_deleted_directory_is_a_change(bed: Bed) -> None:
    for each in bed.resources.iterdir():
        each.unlink()
    bed.resources.rmdir()
    assert bed.directory.has_changed()


def test_the_bundle_digest_is_added_to_an_older_journal(bed: Bed) -> None:
    current = bed.storage.journal()
    bed.storage.save_journal(Journal(current.owned, written=current.written))
    assert not bed.storage.journal().holds("sha256:0")

    bed.apply(delivery(component("one"), component("two")))

    assert bed.storage.journal() == current
    assert current.holds("sha256:0")


def test_drift_is_kept_in_the_journal_until_the_files_are_as_delivered(bed: Bed) -> None:
    before = bed.storage.journal()
    key = "resources/component.one.yaml"
    bed.directory.record_drift({key: "1 2"})
    assert bed.storage.journal().drifted == {key}
    assert bed.storage.journal().holds("sha256:0")

    bed.apply(delivery(component("one"), component("two")))

    after = bed.storage.journal()
    assert (after.drifted, after.owned, after.digest) == (frozenset(), before.owned, before.digest)
    assert (after.drift_ended, after.stamps) == (after.written, before.stamps)


def test_each_write_by_any_program_changes_the_stamp_of_a_file(bed: Bed) -> None:
    def stamps() -> dict[str, str]:
        return {key: each.stamp for key, each in bed.directory.read_files().items()}

    file = bed.resources / "component.one.yaml"
    content, times = file.read_bytes(), file.stat()
    assert stamps() == bed.storage.journal().stamps
    seen = [stamps()]
    for change in (lambda: file.write_bytes(content), file.unlink, lambda: file.write_bytes(content)):
        change()
        if file.exists():
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        seen.append(stamps())
    assert len({each.get("resources/component.one.yaml") for each in seen}) == len(seen)
    assert len({each["resources/component.two.yaml"] for each in seen}) == 1
    bed.apply(delivery(component("one"), component("two")))
    assert bed.storage.journal().stamps == seen[0], "nothing was written"


@pytest.mark.parametrize(
    "text",
    [
        "{kind: Component, metadata: {name: x}, spec: {type: state.redis}, scopes: 5}",
        "{kind: Component, metadata: {name: x, namespace: {a: b}}, spec: {type: state.redis}}",
        "{kind: Component, metadata: {name: x}, spec: null}",
        "{kind: Component, metadata: {name: x}, spec: {type: [1]}}",
        "{kind: Subscription, metadata: {name: x}, spec: 3}",
    ],
)
def test_a_document_of_another_shape_is_not_a_resource(bed: Bed, text: str) -> None:
    (bed.resources / "foreign.yaml").write_text(text)
    assert bed.directory.read_files()["resources/foreign.yaml"].manifests == ()


def test_a_file_too_large_for_a_resource_is_not_read_but_compared(bed: Bed) -> None:
    large = bed.resources / "large.yaml"
    for size in (2**40, 2**41):
        with large.open("wb") as file:
            file.truncate(size)
        assert bed.directory.has_changed()
        assert bed.directory.read_files()["resources/large.yaml"].manifests == ()
        assert not bed.directory.has_changed()
