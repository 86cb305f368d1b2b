"""What protects the objects of a module: nothing is removed without a changed reference."""

from tests.contract.kube.applyset.bed import CONFIG_MAPS, SECRETS, config_map
from tests.contract.reconciler.bed import CHART
from tests.contract.reconciler.steps.bed import ModuleBed, listed
from tests.contract.reconciler.test_inputs import put_secret

CONDITIONAL = """
{{- range .Values.names }}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ . }}}
data: {"n": {{ $.Values.n | default "1" | quote }}}
{{- end }}
{{- if lookup "v1" "ConfigMap" .Release.Namespace "switch" }}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: optional}
{{- end }}
"""


async def test_objects_that_are_no_longer_rendered_for_the_same_chart_and_values_stay(bed: ModuleBed) -> None:
    await bed.client.create(CONFIG_MAPS, config_map("switch", bed.space), manager="user")
    await bed.add("orders", chart=bed.write_chart("orders", all=CONDITIONAL))
    await bed.deploy("orders", values={"names": ["a"]})
    assert await bed.data("optional") == {}
    await bed.client.delete(CONFIG_MAPS, "switch", bed.space)
    await bed.edit("a", n="2")
    await bed.has_data("a", {"n": "1"})
    found = await bed.becomes("orders", "RemovalRefused")
    assert (found["status"]["state"], found["status"]["actor"]) == ("Warning", "user")
    assert "ConfigMap" in found["status"]["message"]
    assert "optional: no longer rendered, although chart and values are the same" in found["status"]["message"]
    await bed.has_event("orders", "Warning", "RemovalRefused")
    assert await bed.data("optional") == {}
    await bed.deploy("orders", values={"names": ["a"], "n": "3"})
    assert await bed.data("optional") is None


ONCE = """
{{- if not (lookup "v1" "ConfigMap" .Release.Namespace "once") }}
apiVersion: v1
kind: ConfigMap
metadata: {name: once}
{{- end }}
"""


async def test_a_chart_that_finds_its_own_objects_when_a_change_is_repeated_loses_none_of_them(bed: ModuleBed) -> None:
    """The first attempt creates an object and is refused another; the second one finds the object and skips it."""
    chart = bed.write_chart("once", once=ONCE, objects=(CHART / "templates" / "objects.yaml").read_text())
    await bed.refuse("late")
    await bed.add("orders", chart=chart, values=listed(config_map("late")))
    await bed.install("orders", "orders")
    await bed.becomes("orders", "NotApplied")
    await bed.has_data("once", {})
    await bed.accept("late")
    await bed.has_data("late", {})
    await bed.shows("ModuleInstance", "orders.local", lambda each: each["status"].get("lastApplied"))
    assert await bed.data("once") == {}
    await bed.install("orders", "orders", values={"more": 1})
    await bed.has_data("once", None)


async def test_values_that_render_nothing_and_missing_values_remove_nothing(bed: ModuleBed) -> None:
    await put_secret(bed, "names: [a]")
    await bed.add("orders", chart=bed.write_chart("orders", all=CONDITIONAL))
    source = [{"secretRef": {"name": "s"}}]
    await bed.deploy("orders", valuesFrom=source)
    await put_secret(bed, "names: []")
    found = await bed.becomes("orders", "RendersNothing")
    assert (found["status"]["state"], found["status"]["actor"]) == ("Warning", "user")
    await bed.client.delete(SECRETS, "s", bed.namespace)
    await bed.becomes("orders", "ValuesMissing")
    assert await bed.data("a") == {"n": "1"}
    await put_secret(bed, "names: [b]")
    await bed.becomes("orders", "Ready")
    await bed.has_data("a", None)
    assert await bed.data("b") == {"n": "1"}


async def test_a_chart_without_objects_can_be_upgraded(bed: ModuleBed) -> None:
    """Its namespace is its only object."""
    space = f"{bed.space}-new"
    await bed.add("orders", namespace=space)
    await bed.deploy("orders")
    await bed.deploy("orders", values={"more": 1})


async def test_an_upgrade_that_failed_is_taken_back_with_what_it_has_created(bed: ModuleBed) -> None:
    await bed.add("orders")
    before = listed(config_map("a", n="1"))
    await bed.deploy("orders", values=before)
    broken = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "broken"}, "spec": {"ports": [{"port": 0}]}}
    await bed.install("orders", "orders", values=listed(config_map("a", n="2"), config_map("b"), broken))
    found = await bed.becomes("orders", "NotApplied")
    assert (found["status"]["state"], found["status"]["actor"]) == ("Warning", "user")
    assert found["status"]["attempt"]["operation"] == "upgrade"
    assert await bed.data("b") == {}
    found = await bed.deploy("orders", values=before)
    assert await bed.data("a") == {"n": "1"}
    assert await bed.data("b") is None
    assert "attempt" not in found["status"]
