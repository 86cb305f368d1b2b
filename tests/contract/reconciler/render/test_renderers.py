"""What both renderers do, and that they do it equally, also for real charts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from governor.errors import GovernorError, Kind
from governor.reconciler.render.helm_cli import HelmRenderer
from governor.reconciler.render.pool import RenderPool
from governor.reconciler.render.request import Capabilities, Layer, Renderer
from governor.values.secret import Secret
from testbed.builds.dapr import VERSION, VERSION_1_16
from testbed.recipes import provide
from tests.contract.reconciler.render.bed import CHARTS, chart, config_map, named, names, request_for
from toolchain.repository import REPOSITORY

OURS = REPOSITORY / "charts"
IMAGE = {"image": {"repository": "local.test/governor"}}
DAPR = {f"dapr-{VERSION}": "dapr-services", f"dapr-{VERSION_1_16}": "dapr-services-1.16"}
ALL_ON = {"global": {"region": "eu"}, "store": {"enabled": True}, "console": {"enabled": True}}
THING = Capabilities("v1.36.3", ("example.com/v1/Thing",))
WORDS = ("yes", "no", "on", "off", "y", "n", "Y", "N", "True", "null", "~")
NUMBERS = ("1", "017", "0o17", "0x1F", "0b11", "1_000", "1e3", "1.5", "-.5", ".5e1", "+1", "18446744073709551615")
TEXTS = ("1:30", "2020-01-01", "1.2.3", "1e400x", "0x", "08a", "-x", "null x", "1__0_", "2001-12-14t21:59:43.10-05:00")
OTHER_YAML = """
map:
  1: a
  yes: b
  1.5: c
  a b: d
  "no": e
anchor: &anchor {x: 1}
merged:
  <<: *anchor
  y: 2
"""

CASES: Mapping[str, tuple[Path, Mapping[str, Any]]] = {
    "small": (CHARTS / "small", {"replicas": 2, "labels": {"on": "yes"}}),
    "defaults": (CHARTS / "platform", {}),
    "all-on": (CHARTS / "platform", ALL_ON),
    "server": (OURS / "governor-server", IMAGE),
    "agent": (OURS / "governor-agent", {**IMAGE, "joinToken": {"value": "rgj1.join"}}),
    "reconciler": (OURS / "governor-reconciler", IMAGE),
}


def dapr(case: str) -> tuple[Path, Mapping[str, Any]]:
    return provide([DAPR[case]])[DAPR[case]].with_name("chart"), {"global": {"ha": {"enabled": True}}}


@pytest.mark.parametrize("case", [*CASES, *DAPR])
async def test_both_render_the_same_objects(linked: RenderPool, helm: HelmRenderer, case: str) -> None:
    path, values = CASES[case] if case in CASES else dapr(case)
    request = request_for(path, values, capabilities=Capabilities("v1.36.3"))
    one, other = await linked.render(request), await helm.render(request)
    assert one.objects == other.objects
    assert one.crds == other.crds
    assert one.hooks == other.hooks
    assert one.objects
    assert await linked.render(request) == one


async def test_scalars_are_read_as_by_helm(linked: RenderPool, helm: HelmRenderer, tmp_path: Path) -> None:
    scalars = (*WORDS, *NUMBERS, *TEXTS)
    items = "\n".join(f"  - {each}\n  - '{each}'\n  - !!str {each}" for each in scalars)
    template = f"apiVersion: v1\nkind: Thing\nmetadata: {{name: b}}\nlist:\n{items}\n{OTHER_YAML}"
    request = request_for(chart(tmp_path, scalars=template))
    one, other = await linked.render(request), await helm.render(request)
    for left, right in zip(named(one, "b")["list"], named(other, "b")["list"], strict=True):
        assert (left, type(left)) == (right, type(right))
    assert one.objects == other.objects


async def test_layers_of_values_override_each_other_as_files_of_helm_do(renderer: Renderer, tmp_path: Path) -> None:
    path = chart(tmp_path, found=config_map("  values: {{ toJson .Values | quote }}"))
    (path / "values.yaml").write_text("a: {b: 1, c: 2, d: {e: 3}}\nl: [1, 2]\n")
    layers = ("a: {b: null, d: {f: on}}", "a: {c: {x: 1}}\nl: [3]", '{"a": {"d": null}}', "")
    rendered = await renderer.render(request_for(path, *layers))
    assert named(rendered, "found")["data"]["values"] == '{"a":{"c":{"x":1}},"l":[3]}'


async def test_conditions_tags_and_aliases_choose_subcharts(renderer: Renderer) -> None:
    rendered = await renderer.render(request_for(CHARTS / "platform", ALL_ON, {"tags": {"front": False}}))
    assert "ConfigMap demo-console" in names(rendered)
    assert "ConfigMap demo-web" not in names(rendered)
    assert "Store demo" in names(rendered)
    assert named(rendered, "demo-title")["data"]["title"] == "demo in eu"
    assert named(rendered, "demo-title")["data"]["imported"] == '{"address":"web.example.com"}'
    assert [each.object["metadata"]["name"] for each in rendered.crds] == [
        *("things.example.com", "parts.example.com", "stores.example.com"),
    ]


async def test_lists_are_flattened_and_empty_documents_dropped(renderer: Renderer) -> None:
    found = names(await renderer.render(request_for(CHARTS / "platform")))
    assert "ConfigMap first" in found
    assert "ConfigMap second" in found
    assert not [each for each in found if each.startswith("List")]


async def test_hooks_come_with_events_weight_and_delete_policies(renderer: Renderer) -> None:
    rendered = await renderer.render(request_for(CHARTS / "platform"))
    found = {
        each.object["metadata"]["name"]: (each.events, each.weight, each.delete_policies) for each in rendered.hooks
    }
    assert found == {
        "prepare": (("pre-install", "pre-upgrade"), -5, ("before-hook-creation", "hook-succeeded")),
        "finish": (("post-install",), 7, ()),
        "clean": (("pre-delete",), 0, ("hook-failed",)),
        "check": (("test",), 0, ()),
        "old-check": (("test",), 0, ()),
    }
    assert not [each for each in names(rendered) if each.startswith("Job")]


async def test_unknown_hooks_are_reported(renderer: Renderer, tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: odd, annotations: {helm.sh/hook: 'crd-install'}}"
    rendered = await renderer.render(request_for(chart(tmp_path, odd=text)))
    assert [each.events for each in rendered.unknown_hooks] == ["crd-install"]
    assert not rendered.objects
    assert not rendered.hooks


async def test_capabilities_of_the_cluster_reach_the_chart(renderer: Renderer) -> None:
    rendered = await renderer.render(request_for(CHARTS / "platform", capabilities=THING))
    assert "Thing from-capabilities" in names(rendered)
    assert named(rendered, "demo-capabilities")["data"] == {
        "kubernetes": "{v1.36.3 1 36} v1.36.3",
        "minor": "36",
        "old": "v1.36.3",
        "helm": "v3.17.3",
        "newer": "true",
    }


async def test_an_upgrade_is_rendered_as_such(renderer: Renderer) -> None:
    for is_upgrade, expected in ((False, "demo apps true false 1"), (True, "demo apps false true 1")):
        rendered = await renderer.render(request_for(CHARTS / "platform", is_upgrade=is_upgrade))
        assert named(rendered, "demo-title")["data"]["release"] == expected


async def test_values_that_render_nothing_are_no_error(renderer: Renderer, tmp_path: Path) -> None:
    path = chart(tmp_path, found="{{ if .Values.wanted }}" + config_map("  a: b") + "{{ end }}")
    assert not (await renderer.render(request_for(path))).objects
    assert names(await renderer.render(request_for(path, "wanted: true"))) == ["ConfigMap found"]


REJECTED = {
    "schema": ({"console": {"port": 0}}, "console.port"),
    "kubernetes": ({}, "chart requires kubeVersion: >=1.25.0-0 which is incompatible with Kubernetes v1.20.0"),
}


@pytest.mark.parametrize("case", REJECTED)
async def test_what_helm_rejects_is_invalid(renderer: Renderer, case: str) -> None:
    values, expected = REJECTED[case]
    capabilities = Capabilities("v1.20.0") if case == "kubernetes" else Capabilities()
    with pytest.raises(GovernorError, match=expected) as caught:
        await renderer.render(request_for(CHARTS / "platform", values, capabilities=capabilities))
    assert caught.value.kind is Kind.INVALID


TEMPLATES = {
    "a failing template": ("{{ fail \"this is wrong\" }}", "this is wrong"),
    "a required value": ("{{ required \"name is needed\" .Values.name }}", "name is needed"),
    "a parse error": ("{{ if }}", "missing value for if"),
    "no YAML": ("a: b: c", "found.yaml"),
    "a key that is null": ("apiVersion: v1\nkind: A\nmetadata: {name: a}\nmap: {null: b}", "found.yaml"),
    "no object": ("- a", "found.yaml"),
    "no name": ("apiVersion: v1\nkind: ConfigMap", "found.yaml: an object has no metadata.name"),
    "a recursion": ('{{ define "a" }}{{ include "a" . }}{{ end }}{{ include "a" . }}', "error calling include"),
}  # fmt: skip


@pytest.mark.parametrize("case", TEMPLATES)
async def test_a_broken_template_is_invalid_and_named(renderer: Renderer, tmp_path: Path, case: str) -> None:
    template, expected = TEMPLATES[case]
    with pytest.raises(GovernorError, match=expected) as caught:
        await renderer.render(request_for(chart(tmp_path, found=template)))
    assert caught.value.kind is Kind.INVALID


async def test_library_charts_and_missing_dependencies_are_invalid(renderer: Renderer, tmp_path: Path) -> None:
    library = chart(tmp_path, "library")
    (library / "Chart.yaml").write_text("apiVersion: v2\nname: library\nversion: 1.0.0\ntype: library\n")
    lacking = chart(tmp_path, "lacking")
    with (lacking / "Chart.yaml").open("a") as file:
        file.write("dependencies: [{name: absent, version: 1.0.0}]\n")
    for path, expected in ((library, "library charts are not installable"), (lacking, "absent")):
        with pytest.raises(GovernorError, match=expected) as caught:
            await renderer.render(request_for(path))
        assert caught.value.kind is Kind.INVALID


async def test_messages_contain_no_sensitive_value(renderer: Renderer, tmp_path: Path) -> None:
    text = '"bad password %s (%s, %v) in %s" .Values.password (b64enc .Values.password) .Values.pin .Values.place'
    path = chart(tmp_path, found=f"{{{{ fail (printf {text}) }}}}")
    sensitive = Layer(Secret("password: s3cr3t-password\npin: 12345"), is_sensitive=True)
    with pytest.raises(GovernorError, match=r"bad password \*\*\* \(\*\*\*, \*\*\*\) in Berlin"):
        await renderer.render(request_for(path, "place: Berlin", sensitive))


async def test_a_chart_that_needs_too_much_memory_is_stopped(renderer: Renderer, tmp_path: Path) -> None:
    with pytest.raises(GovernorError, match="more than 512 MiB of memory") as caught:
        await renderer.render(request_for(chart(tmp_path, found="{{ range until 2000000000 }}{{ end }}")))
    assert caught.value.kind is Kind.EXHAUSTED
    assert (await renderer.render(request_for(CHARTS / "small"))).objects


async def test_generated_values_are_kept_with_the_recording(renderer: Renderer) -> None:
    first = await renderer.render(request_for(CHARTS / "generated"))
    again = await renderer.render(request_for(CHARTS / "generated", recording=first.recording))
    fresh = await renderer.render(request_for(CHARTS / "generated"))
    for name in ("demo-passwords", "demo-certificates"):
        assert named(again, name) == named(first, name)
        assert named(fresh, name) != named(first, name)
    assert again.recording == first.recording
    more = await renderer.render(
        request_for(CHARTS / "generated", {"users": ["alice", "bob", "carol"]}, recording=first.recording)
    )
    passwords = named(more, "demo-passwords")["stringData"]
    assert passwords.items() > named(first, "demo-passwords")["stringData"].items()
    assert passwords["fixed"] == "not-generated"


async def test_generated_values_stay_when_the_linked_renderer_is_installed_later(
    linked: RenderPool, helm: HelmRenderer
) -> None:
    by_helm = await helm.render(request_for(CHARTS / "generated"))
    first = await linked.render(request_for(CHARTS / "generated", recording=by_helm.recording))
    again = await linked.render(request_for(CHARTS / "generated", recording=first.recording))
    for name in ("demo-passwords", "demo-certificates"):
        assert named(first, name) == named(by_helm, name)
    assert again == first
    with pytest.raises(GovernorError, match="was recorded by governor-renderer"):
        await helm.render(request_for(CHARTS / "generated", recording=again.recording))
