"""The catalogue: selectors and the runtimes that they match, kept up to date by revisions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.domain.documents import DocumentRef, Selector
from governor.server.changes.catalogue import Catalogue
from governor.values.digest import digest
from tests.unit.server.changes.samples import EU, catalogue, deletion, profile, runtime, version

LABELS = st.dictionaries(st.sampled_from(["region", "tier"]), st.sampled_from(["a", "b"]))
NAMES = st.sampled_from(["r1", "r2", "r3", "r4"])
EXPRESSIONS = st.sampled_from(
    [
        {"key": "region", "operator": "In", "values": ["a"]},
        {"key": "tier", "operator": "NotIn", "values": ["b"]},
        {"key": "tier", "operator": "Exists"},
    ]
)
SELECTORS = st.one_of(
    st.builds(lambda name: {"runtime": name}, NAMES),
    st.builds(
        lambda labels, expressions: {"matchLabels": labels, "matchExpressions": expressions},
        LABELS,
        st.lists(EXPRESSIONS, max_size=2),
    ),
)
DOCUMENTS = st.one_of(
    st.builds(lambda name, labels: runtime(name, **labels), NAMES, LABELS),
    st.builds(profile, st.sampled_from(["p1", "p2", "p3"]), SELECTORS),
)


def selected(found: Catalogue) -> dict[str, set[str]]:
    return {name: found.selected_by(selector) for name, selector in found.selectors.items()}


@given(st.lists(st.tuples(DOCUMENTS, st.booleans()), max_size=20))
def test_an_updated_catalogue_matches_as_every_selector_does(steps: list[tuple[dict[str, Any], bool]]) -> None:
    found, trees = catalogue(), dict[DocumentRef, dict[str, Any]]()
    for number, (tree, is_deleted) in enumerate(steps, start=1):
        ref = version(tree).ref
        new = deletion(ref, number) if is_deleted else version(tree, number)
        found = found.updated(number, [new])
        trees.pop(ref, None)
        if not is_deleted:
            trees[ref] = tree
    runtimes = {ref.name: tree["metadata"]["labels"] for ref, tree in trees.items() if ref.kind == "Runtime"}
    expected = {
        name: {each for each in runtimes if found.selectors[name].matches(each, runtimes[each])}
        for name in found.selectors
    }
    assert found.runtimes.keys() == runtimes.keys()
    assert selected(found) == expected
    digests: dict[str, Any] = {str(ref): version(tree).digest for ref, tree in trees.items()}
    assert found.digest == digest(digests)
    of_runtimes = {name: set(found.profiles_of(each)) for name, each in found.runtimes.items()}
    assert of_runtimes == {name: {each for each in expected if name in expected[each]} for name in runtimes}


def test_a_revision_changes_nothing_in_the_catalogue_before_it() -> None:
    before = catalogue(runtime("r1", region="eu"), profile("p", EU))
    after = before.updated(2, [version(runtime("r1", region="us"), 2, 2), deletion(DocumentRef("Profile", "p"))])
    assert selected(before) == {"p": {"r1"}}
    assert (selected(after), after.selected_by(Selector(match_labels={"region": "us"}))) == ({}, {"r1"})


def test_a_deleted_document_keeps_its_version_and_does_not_exist() -> None:
    ref = DocumentRef("Runtime", "r1")
    found = catalogue(runtime("r1")).updated(2, [deletion(ref)])
    assert (found.entries[ref].version, found.exists(ref)) == (2, False)


@pytest.mark.parametrize("change", [runtime("r1", region="us"), runtime("r2")])
def test_the_digest_depends_on_all_existing_documents(change: dict[str, Any]) -> None:
    before = catalogue(runtime("r1"))
    changed = before.updated(2, [version(change, 2, 2)])
    back = changed.updated(3, [version(runtime("r1"), 3, 3), deletion(DocumentRef("Runtime", "r2"), 3, 3)])
    assert len({before.digest, changed.digest}) == 2
    assert back.digest == before.digest
