"""Layers of values are merged as Helm merges its files, for any values."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from governor.reconciler.render.helm_cli import HelmRenderer
from governor.reconciler.render.pool import RenderPool
from tests.contract.reconciler.render.bed import chart, config_map, named, request_for

KEYS = st.sampled_from(["a", "b", "global", "sub", "c d"])
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.sampled_from(["", "yes", "{{ x }}"])
TREES = st.recursive(LEAVES | st.lists(LEAVES, max_size=2), lambda each: st.dictionaries(KEYS, each, max_size=3))
LAYERS = st.lists(st.dictionaries(KEYS, TREES, max_size=4), max_size=4)
FIXED = "a: {b: {c d: 1, a: [1]}, c d: null}\nb: text\nsub: {a: {b: 1}, b: [x]}\nglobal: {a: 1, b: {a: 2}}\n"


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chart with a subchart; both show the values that they have."""
    path = chart(tmp_path_factory.mktemp("echo"), "echo", found=config_map("  values: {{ toJson .Values | quote }}"))
    (path / "values.yaml").write_text(FIXED)
    sub = chart(path / "charts", "sub", found=config_map("  values: {{ toJson .Values | quote }}", "below"))
    (sub / "values.yaml").write_text("a: {b: 2, c d: 3}\nglobal: {b: {b: 4}}\n")
    return path


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layers=LAYERS)
async def test_values_are_merged_as_by_helm(
    linked: RenderPool, helm: HelmRenderer, echo: Path, layers: list[dict[str, Any]]
) -> None:
    await compare(linked, helm, echo, layers)


@pytest.mark.soak
@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layers=LAYERS)
async def test_many_values_are_merged_as_by_helm(
    linked: RenderPool, helm: HelmRenderer, echo: Path, layers: list[dict[str, Any]]
) -> None:
    await compare(linked, helm, echo, layers)


async def compare(linked: RenderPool, helm: HelmRenderer, echo: Path, layers: list[dict[str, Any]]) -> None:
    request = request_for(echo, *layers)
    outcomes = []
    for renderer in (linked, helm):
        try:
            rendered = await renderer.render(request)
        except Exception as error:  # noqa: BLE001 - compared
            outcomes.append(type(error).__name__)
        else:
            outcomes.append("".join(named(rendered, name)["data"]["values"] for name in ("found", "below")))
    assert outcomes[0] == outcomes[1]
