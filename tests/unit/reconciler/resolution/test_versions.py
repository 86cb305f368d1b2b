"""The order of semantic versions."""

import itertools

import pytest

from governor.reconciler.resolution.versions import is_older

ORDERED = (
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0",
    "1.2.0",
    "1.10.0",
)


@pytest.mark.parametrize(("older", "newer"), list(itertools.combinations(ORDERED, 2)))
def test_versions_are_ordered_as_the_specification_says(older: str, newer: str) -> None:
    assert is_older(older, newer)
    assert not is_older(newer, older)


def test_build_metadata_and_prefix_do_not_count_and_other_texts_are_not_ordered() -> None:
    assert not is_older("v1.0.0+a", "1.0.0+b")
    assert not is_older("1.0.0+b", "v1.0.0+a")
    assert not is_older("latest", "1.0.0")
