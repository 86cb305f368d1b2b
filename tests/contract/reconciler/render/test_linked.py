"""What only the linked renderer can do: replay, lookups, reads of capabilities; and how it withstands bad charts."""

import asyncio
import base64
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from governor.errors import GovernorError, Kind
from governor.reconciler.charts.package import read_all
from governor.reconciler.render import linked as linked_module
from governor.reconciler.render.cache import CachingRenderer, RenderCache
from governor.reconciler.render.helm_cli import HelmRenderer
from governor.reconciler.render.linked import Limits
from governor.reconciler.render.pool import RenderPool
from governor.reconciler.render.request import Capabilities, LookupCall, Reads, Rendered, Request
from governor.reconciler.render.scan import scan
from testbed.recipes import provide
from testbed.waiting import until
from tests.contract.reconciler.render.bed import CHARTS, chart, config_map, named, request_for

ENDLESS = "{{ range until 100000 }}{{ range until 100000 }}{{ end }}{{ end }}"


@pytest.fixture
async def limited(programs: dict[str, Path]) -> AsyncIterator[RenderPool]:
    """A pool of one process, and another one for charts that exceed the short time limit."""
    limits = Limits(timeout_s=1.0)
    async with RenderPool(str(programs["renderer"]), size=1, limits=limits) as pool:
        yield pool


async def test_a_replayed_rendering_is_equal_and_its_checksums_are_true(linked: RenderPool) -> None:
    first = await linked.render(request_for(CHARTS / "generated"))
    again = await linked.render(request_for(CHARTS / "generated", recording=first.recording))
    assert again == first
    noted = await linked.render(request_for(CHARTS / "generated", "note: changed", recording=first.recording))
    workload, old = named(noted, "demo"), named(first, "demo")
    assert workload["spec"] == old["spec"]
    assert workload["metadata"]["annotations"] == {**old["metadata"]["annotations"], "note": "changed"}
    fresh = await linked.render(request_for(CHARTS / "generated"))
    assert named(fresh, "demo")["spec"] != old["spec"]


async def test_a_file_that_is_included_for_its_checksum_has_the_content_of_the_object(
    linked: RenderPool, tmp_path: Path
) -> None:
    secret = config_map("  password: {{ randAlphaNum 20 }}", "secret")
    other = config_map('  copy: {{ include (print .Template.BasePath "/secret.yaml") . | b64enc }}', "other")
    rendered = await linked.render(request_for(chart(tmp_path, secret=secret, other=other)))
    copy = base64.b64decode(named(rendered, "other")["data"]["copy"]).decode()
    assert named(rendered, "secret")["data"]["password"] in copy


async def test_equal_calls_in_one_file_have_different_results(linked: RenderPool, tmp_path: Path) -> None:
    path = chart(tmp_path, found=config_map("  a: {{ randAlphaNum 20 }}\n  b: {{ randAlphaNum 20 }}"))
    data = named(await linked.render(request_for(path)), "found")["data"]
    assert data["a"] != data["b"]


async def test_no_generated_value_is_in_a_message(linked: RenderPool, tmp_path: Path) -> None:
    path = chart(tmp_path, found='{{ fail (printf "bad: %s" (randAlphaNum 20)) }}')
    with pytest.raises(GovernorError, match=r"bad: \*\*\*"):
        await linked.render(request_for(path))


LOOKUP = config_map(
    '  size: {{ (lookup "v1" "PersistentVolumeClaim" "apps" "data").spec.size | default "none" | quote }}\n'
    '  count: {{ len (lookup "v1" "Pod" "" "").items | quote }}\n'
    '  absent: {{ empty (lookup "v1" "Pod" "apps" "absent") | quote }}'
)


async def answer(call: LookupCall) -> dict[str, Any] | None:
    if call.kind == "PersistentVolumeClaim":
        return {"kind": call.kind, "metadata": {"name": call.name}, "spec": {"size": 1_000_000_000}}
    return {"kind": "PodList", "items": [{}, {}]} if not call.name else None


async def test_lookups_are_answered_and_reported(linked: RenderPool, tmp_path: Path) -> None:
    path = chart(tmp_path, found=LOOKUP)
    rendered = await linked.render(request_for(path, lookup=answer))
    assert named(rendered, "found")["data"] == {"size": "1000000000", "count": "2", "absent": "true"}
    assert rendered.lookups[0] == LookupCall("v1", "PersistentVolumeClaim", "apps", "data")
    assert len(rendered.lookups) == 3


async def test_the_real_chart_of_dapr_keeps_the_size_of_its_volumes(linked: RenderPool) -> None:
    path = provide(["dapr-services"])["dapr-services"].with_name("chart")
    assert scan(read_all(path)).lookups == ("charts/dapr_scheduler/templates/_helpers.tpl",)

    async def with_volume(call: LookupCall) -> dict[str, Any]:
        claim = {
            "metadata": {"name": "dapr-scheduler-data-dir"},
            "spec": {"resources": {"requests": {"storage": "5Gi"}}},
        }
        return {"kind": call.kind, "metadata": {"name": call.name}, "spec": {"volumeClaimTemplates": [claim]}}

    sizes = []
    for lookup in (None, with_volume):
        rendered = await linked.render(request_for(path, lookup=lookup))
        assert LookupCall("apps/v1", "StatefulSet", "apps", "dapr-scheduler-server") in rendered.lookups
        (claim,) = named_kind(rendered, "StatefulSet", "dapr-scheduler-server")["spec"]["volumeClaimTemplates"]
        sizes.append(claim["spec"]["resources"]["requests"]["storage"])
    assert sizes == ["16Gi", "5Gi"]


def named_kind(rendered: Rendered, kind: str, name: str) -> Any:
    found = [each.object for each in rendered.objects if each.object["kind"] == kind]
    return next(each for each in found if each["metadata"]["name"] == name)


async def test_lookups_find_nothing_without_a_cluster(linked: RenderPool, tmp_path: Path) -> None:
    path = chart(tmp_path, found=config_map('  found: {{ lookup "v1" "Pod" "a" "b" | empty | quote }}'))
    assert named(await linked.render(request_for(path)), "found")["data"] == {"found": "true"}


async def test_helm_refuses_a_chart_with_lookups_that_must_be_answered(helm: HelmRenderer, tmp_path: Path) -> None:
    path = chart(tmp_path, found=LOOKUP)
    with pytest.raises(GovernorError, match=r"templates/found\.yaml calls lookup") as caught:
        await helm.render(request_for(path, lookup=answer))
    assert caught.value.kind is Kind.UNIMPLEMENTED


async def test_a_denied_lookup_fails_the_rendering_and_an_unreachable_cluster_is_unavailable(
    linked: RenderPool, tmp_path: Path
) -> None:
    path = chart(tmp_path, found=config_map('  found: {{ lookup "v1" "Pod" "a" "b" | empty | quote }}'))
    for kind, expected in ((Kind.DENIED, Kind.INVALID), (Kind.UNAVAILABLE, Kind.UNAVAILABLE)):

        async def fail(_: LookupCall, kind: Kind = kind) -> None:
            raise GovernorError(kind, "no", "pods cannot be read")

        with pytest.raises(GovernorError, match="pods cannot be read") as caught:
            await linked.render(request_for(path, lookup=fail))
        assert caught.value.kind is expected
    assert (await linked.render(request_for(path))).objects


READS = {
    "nothing": ("", Reads(kube_version=False, all_api_versions=False)),
    "one": ('{{ if .Capabilities.APIVersions.Has "a/v1" }}{{ end }}', Reads(False, False, ("a/v1",))),
    "all": ("{{ $all := .Capabilities.APIVersions }}", Reads(False, True)),
    "version": ("{{ if .Capabilities.KubeVersion.Minor }}{{ end }}", Reads(True, False)),
    "everything": ("{{ $text := toYaml .Capabilities }}", Reads(True, True)),
}


@pytest.mark.parametrize("case", READS)
async def test_the_capabilities_that_a_chart_reads_are_reported(linked: RenderPool, tmp_path: Path, case: str) -> None:
    text, expected = READS[case]
    rendered = await linked.render(request_for(chart(tmp_path, found=text)))
    assert rendered.reads == expected


async def test_clusters_that_differ_in_other_capabilities_share_a_rendering(linked: RenderPool, tmp_path: Path) -> None:
    rendered: list[Request] = []

    class Counting:
        async def render(self, request: Request) -> Rendered:
            rendered.append(request)
            return await linked.render(request)

    caching = CachingRenderer(Counting(), RenderCache())
    text = '{{ if .Capabilities.APIVersions.Has "a/v1" }}' + config_map("  a: b") + "{{ end }}"
    path = chart(tmp_path, found=text)
    found = [
        await caching.render(request_for(path, capabilities=Capabilities(version, versions)))
        for version, versions in (("v1.30.0", ("a/v1",)), ("v1.31.0", ("a/v1", "b/v1")), ("v1.31.0", ("b/v1",)))
    ]
    assert len(rendered) == 2
    assert found[0] == found[1]
    assert not found[2].objects


async def test_a_chart_that_never_ends_delays_no_other_release(limited: RenderPool, tmp_path: Path) -> None:
    endless = request_for(chart(tmp_path, "endless", found=ENDLESS))
    with pytest.raises(GovernorError, match="not rendered within 1 s") as caught:
        await limited.render(endless)
    assert caught.value.kind is Kind.DEADLINE
    again = asyncio.create_task(limited.render(endless))
    await asyncio.sleep(0)
    for _ in range(3):
        assert (await limited.render(request_for(CHARTS / "small"))).objects
    assert not again.done()
    with pytest.raises(GovernorError, match="not rendered within 1 s"):
        await again


async def has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def test_a_killed_renderer_is_replaced(linked: RenderPool, tmp_path: Path) -> None:
    await linked.render(request_for(CHARTS / "small"))
    (idle,) = linked.pids
    os.kill(idle, signal.SIGKILL)  # its end is not noticed before the next request
    assert (await linked.render(request_for(CHARTS / "small"))).objects

    async def kill(_: LookupCall) -> None:
        os.kill(pid, signal.SIGKILL)

    (pid,) = linked.pids
    assert pid != idle
    path = chart(tmp_path, found=LOOKUP)
    with pytest.raises(GovernorError, match="the renderer was terminated by SIGKILL") as caught:
        await linked.render(request_for(path, lookup=kill))
    assert caught.value.kind is Kind.UNAVAILABLE
    assert (await linked.render(request_for(CHARTS / "small"))).objects


async def test_an_idle_renderer_is_stopped(programs: dict[str, Path]) -> None:
    async with RenderPool(str(programs["renderer"]), size=1, idle_s=0.05) as pool:
        await pool.render(request_for(CHARTS / "small"))
        (pid,) = pool.pids
        await until(lambda: has_ended(pid))
        assert pool.pids == ()
        assert (await pool.render(request_for(CHARTS / "small"))).objects


async def test_a_cancelled_rendering_leaves_no_process(programs: dict[str, Path], tmp_path: Path) -> None:
    process = await linked_module.start(str(programs["renderer"]), Limits())
    rendering = asyncio.create_task(process.render(request_for(chart(tmp_path, found=ENDLESS))))
    await asyncio.sleep(0)
    rendering.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await rendering
    assert not process.is_usable
    await process.stop()
    assert not Path(f"/proc/{process.pid}").exists()


async def test_a_chart_of_five_megabytes_is_rendered(linked: RenderPool, tmp_path: Path) -> None:
    path = chart(tmp_path, found=config_map('  size: {{ .Files.Get "big.txt" | len | quote }}'))
    for name in ("big.txt", "other.txt"):
        (path / name).write_text("x" * 2_600_000)
    assert named(await linked.render(request_for(path)), "found")["data"] == {"size": "2600000"}


async def test_no_schema_is_fetched_from_elsewhere(linked: RenderPool, tmp_path: Path) -> None:
    path = chart(tmp_path, found="")
    (path / "values.schema.json").write_text('{"$ref": "http://127.0.0.1:9/schema.json"}')
    with pytest.raises(GovernorError, match="without access to the network"):
        await linked.render(request_for(path))


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    async with RenderPool(str(tmp_path / "absent")) as pool:
        with pytest.raises(GovernorError, match=r"cannot start .*absent") as caught:
            await pool.render(request_for(CHARTS / "small"))
    assert caught.value.kind is Kind.PRECONDITION


async def test_another_program_is_no_renderer(programs: dict[str, Path]) -> None:
    with pytest.raises(GovernorError) as caught:
        await linked_module.start(str(programs["helm"]), Limits())
    assert caught.value.code in ("renderer-protocol", "renderer-exited")
