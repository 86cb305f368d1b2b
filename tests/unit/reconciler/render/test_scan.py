"""Calls in templates, found without rendering."""

import pytest

from governor.reconciler.render.scan import functions, scan

FOUND = {
    '{{ lookup "v1" "Pod" "" "" }}': True,
    '{{- $x := (lookup "v1" "Pod" "" "").items -}}': True,
    "{{ if\n  not (lookup $a $b $c $d) }}": True,
    "lookup {{ .lookup }} {{ $lookup }} {{ .Values.lookup }}": False,
    '{{ "lookup" }} {{ `lookup` }} {{/* lookup */}} {{- /* a\nlookup */ -}}': False,
    '{{ "a\\"" }}{{ lookup "\\"" }}': True,
    "{{ lookups }}": False,
}


@pytest.mark.parametrize("template", FOUND)
def test_a_function_is_found_only_where_it_is_called(template: str) -> None:
    assert (b"lookup" in functions(template.encode())) is FOUND[template]


def test_templates_of_a_chart_and_its_dependencies_are_scanned() -> None:
    files = {
        "templates/a.yaml": b"{{ lookup }}",
        "charts/sub/templates/_b.tpl": b"{{ randAlphaNum 5 }}",
        "charts/packed-1.0.0.tgz/templates/c.yaml": b"{{ now }}{{ lookup }}",
        "README.md": b"{{ lookup }}",
    }
    found = scan(files)
    assert found.lookups == ("charts/packed-1.0.0.tgz/templates/c.yaml", "templates/a.yaml")
    assert found.generators == ("charts/packed-1.0.0.tgz/templates/c.yaml", "charts/sub/templates/_b.tpl")
