"""Label selectors as text."""

import pytest

from governor.errors import GovernorError
from governor.values.selectors import parse

EU = {"region": "eu", "tier": "web"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("region=eu", True),
        ("region==eu", True),
        (" region = eu , tier=web ", True),
        ("region=us", False),
        ("region!=us", True),
        ("region!=eu", False),
        ("rack!=1", True),
        ("region", True),
        ("rack", False),
        ("!rack", True),
        ("!region", False),
        ("region in (us, eu)", True),
        ("region notin (us,eu)", False),
        ("region in (us,eu),tier notin (db)", True),
        ("runtime-governor.dev/x.y=1", False),
    ],
)
def test_a_selector_matches_as_in_kubectl(text: str, matches: bool) -> None:
    assert parse(text).matches(EU) is matches


@pytest.mark.parametrize("text", ["a=b=c", "a in b", "a,", ",a", "a,,b", "=a", "a (b)", "a in (b", "!", "a b"])
def test_a_wrong_selector_is_rejected(text: str) -> None:
    with pytest.raises(GovernorError, match="is not a label selector"):
        parse(text)
