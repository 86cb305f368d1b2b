"""The changes in Helm's engine."""

import pytest

from toolchain.errors import TestbedError
from toolchain.renderer import change

ENGINE = """
	EnableDNS bool
}

	t.Funcs(funcMap)
}
		err := t.ExecuteTemplate(&buf, name, data)
		if err := t.ExecuteTemplate(&buf, filename, vals); err != nil {
"""


def test_each_place_is_changed_once() -> None:
    changed = change(ENGINE)
    assert changed.count("Functions template.FuncMap") == 1
    assert changed.count("leave()") == 2


@pytest.mark.parametrize("engine", [ENGINE.replace("t.Funcs(funcMap)", "t.Funcs(f)"), ENGINE + ENGINE])
def test_an_engine_in_which_a_place_is_missing_or_ambiguous_is_not_built(engine: str) -> None:
    with pytest.raises(TestbedError, match="does not contain this exactly once"):
        change(engine)
