"""``governor runtime-proxy tap`` with a running proxy."""

import asyncio
import json
import os
import shlex
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from testbed.commands import Outcome, Running
from testbed.cri.fixtures import StartHookPlugin
from testbed.waiting import until
from tests.integration.runtimeproxy.bed import Bed
from tests.integration.runtimeproxy.calls import POD, create_container, hooked, run_pod


class Tapped:
    """An open tap; its outcome is set when it has ended."""

    outcome: Outcome

    @property
    def calls(self) -> list[Any]:
        """Return the calls that it printed."""
        return [line for line in self.lines if line["type"] == "call"]

    @property
    def lines(self) -> list[Any]:
        """Return all lines that it printed."""
        return [json.loads(line) for line in self.outcome.lines]


@asynccontextmanager
async def tapped(bed: Bed, *words: str) -> AsyncIterator[Tapped]:
    """Run a tap until it has shown as many calls as its ``--count``."""
    running = await bed.proxy.start_command("tap", "-o", "json", *words)
    tap = Tapped()
    await running.wait_for_line('"opened"')
    yield tap
    tap.outcome = await running.ended()
    assert tap.outcome.code == 0, tap.outcome.err


async def test_calls_are_shown_with_their_subject_and_the_plugins_changes(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    plugin = await start_hook_plugin(
        {"method": "PreCreateContainerHook", "answer": {"container_resources": {"cpu_shares": "512"}}}
    )
    await hooked(bed, plugin, name="tuner")

    async with tapped(bed, "--count", "4") as tap:
        await bed.client.answer("Version")
        sandbox = await run_pod(bed)
        container = await create_container(bed, sandbox)
        await bed.client.answer("ContainerStatus", {"container_id": container})

    version, run, created, status = tap.calls
    assert (version["path"], version["status"], version["outcome"]) == (
        "/runtime.v1.RuntimeService/Version",
        "OK",
        "completed",
    )
    assert (version.get("held", False), version.get("subject", {})) == (False, {})
    assert run["held"]
    assert run["subject"] == {"namespace": "shop", "pod": "web", "uid": "u-1"}
    assert [each["plugin"] for each in run["trail"]["asked"]] == ["tuner"]
    assert created["subject"]["container"] == "main"
    assert created["trail"]["changes"] == [
        {"plugin": "tuner", "path": ["container_resources", "cpu_shares"], "old": 100, "new": 512}
    ]
    assert created["seconds"] >= created["trail"]["asked"][0]["seconds"] > 0
    assert status["subject"] == {
        "namespace": "shop",
        "pod": "web",
        "uid": "u-1",
        "sandbox_id": sandbox,
        "container": "main",
        "container_id": container,
    }


async def test_copied_connections_reconnect_and_are_shown_without_plugins(own_bed: Bed) -> None:
    await own_bed.client.answer("Version")
    assert await own_bed.proxy.metric('governor_proxy_connections{mode="copied"}') == 1

    async with tapped(own_bed, "--count", "2") as tap:
        await own_bed.client.answer("Version")
        await run_pod(own_bed)

    assert tap.lines[0] == {"type": "opened", "retired": 1}
    assert [call["path"].rpartition("/")[2] for call in tap.calls] == ["Version", "RunPodSandbox"]
    assert tap.calls[1]["subject"]["pod"] == "web"
    assert not tap.calls[1].get("held", False)
    assert "governor_proxy_held_calls_total{" not in (await own_bed.proxy.get("/metrics"))[1]
    assert (await own_bed.client.wire()).errors == ()
    await own_bed.proxy.wait_for_metric("governor_proxy_taps", 0)


async def test_a_client_that_connects_after_the_tap_is_copied_again(bed: Bed) -> None:
    async with tapped(bed, "--count", "1"):
        await bed.client.answer("Version")
    await bed.proxy.wait_for_metric("governor_proxy_taps", 0)

    await bed.client.stop()
    await bed.client.start()
    await bed.client.answer("Version")

    assert await bed.proxy.metric('governor_proxy_connections{mode="copied"}') == 1


async def test_rejected_and_cancelled_calls_are_shown_with_their_reason(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    status = {"code": "PERMISSION_DENIED", "message": "no"}
    rejecting = await start_hook_plugin({"method": "PreRunPodSandboxHook", "status": status})
    hanging = await start_hook_plugin({"hang": True})
    await hooked(bed, rejecting, name="strict", hooks=["PreRunPodSandbox"], failure_policy="Fail")
    await hooked(bed, hanging, name="slow", hooks=["PreCreateContainer"], timeout=30)

    async with tapped(bed, "--errors", "--count", "2") as tap:
        await bed.client.answer("Version")
        await bed.client.call("RunPodSandbox", {"config": POD})
        request = {"pod_sandbox_id": "s", "config": {"metadata": {"name": "main"}}, "sandbox_config": POD}
        async with bed.client.stream("CreateContainer", request):

            async def is_called() -> bool:
                return await hanging.open_calls() == 1

            await until(is_called)

    rejected, cancelled = tap.calls
    assert (rejected["outcome"], rejected["status"]) == ("refused", "PERMISSION_DENIED")
    assert rejected["trail"]["refusal"] == "plugin strict rejected PreRunPodSandbox: no"
    assert cancelled["outcome"] == "cancelled"
    assert [(each["plugin"], each["error"]) for each in cancelled["trail"]["asked"]] == [
        ("slow", "the call ended before the plugin responded")
    ]


async def test_a_call_for_which_no_plugin_can_be_called_is_shown_with_the_reason(
    bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    await hooked(bed, await start_hook_plugin())

    async with tapped(bed, "--errors", "--count", "1") as tap:
        await bed.client.call("StartContainer", {"container_id": "unknown"})

    [call] = tap.calls
    assert (call["held"], call["subject"]) == (True, {"container_id": "unknown"})
    assert call["trail"]["unasked"].startswith("container 'unknown' is unknown to the runtime proxy")


async def test_only_matching_calls_are_shown(bed: Bed, start_hook_plugin: StartHookPlugin) -> None:
    await hooked(bed, await start_hook_plugin())
    async with (
        tapped(bed, "--method", "run*", "--count", "2") as by_method,
        tapped(bed, "--pod", "test/other", "--count", "1") as by_pod,
        tapped(bed, "--held", "--count", "2") as held,
    ):
        await bed.client.answer("Version")
        await run_pod(bed)
        await run_pod(bed, metadata={"name": "other", "uid": "u-2", "namespace": "test"})

    assert [call["subject"]["pod"] for call in by_method.calls] == ["web", "other"]
    assert [call["subject"]["uid"] for call in by_pod.calls] == ["u-2"]
    assert all(call["held"] for call in held.calls)


async def test_text_output_has_a_line_per_call_and_ends_on_ctrl_c(bed: Bed) -> None:
    running = await bed.proxy.start_command("tap")

    async def is_open() -> bool:
        return await bed.proxy.metric("governor_proxy_taps") == 1

    await until(is_open)
    await run_pod(bed)
    await running.wait_for_line("RunPodSandbox")
    running.interrupt()
    outcome = await running.ended()

    assert outcome.code == 0
    assert "shop/web" in outcome.out
    assert outcome.err.startswith("watching; ")
    await bed.proxy.wait_for_metric("governor_proxy_taps", 0)


@pytest.mark.parametrize(("output", "code"), [("> /dev/full", 10), ("| head -n 1", 141)])
async def test_a_tap_whose_output_is_closed_ends_without_a_traceback(output: str, code: int, bed: Bed) -> None:
    command = f"{{ {shlex.join([*bed.proxy.command(), 'tap'])}; echo ended with $? >&2; }} {output}"
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    await bed.proxy.wait_for_metric("governor_proxy_taps", 1)

    async def has_ended() -> bool:
        await bed.client.answer("Version")
        return await bed.proxy.metric("governor_proxy_taps") == 0

    await until(has_ended)
    outcome = await Running(process).ended()

    assert f"ended with {code}\n" in outcome.err
    assert "Traceback" not in outcome.err
    assert "defect" not in outcome.err


async def test_lines_of_a_slow_reader_are_dropped_and_no_call_is_delayed(bed: Bed) -> None:
    """It reads nothing until thousands of calls have ended, more than socket buffers and the proxy's queue hold."""
    with socket.socket(socket.AF_UNIX) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(str(bed.proxy.socket.with_name("proxy-control.sock")))
        slow.sendall(b"GET /v1/calls HTTP/1.1\r\nHost: x\r\n\r\n")
        await bed.proxy.wait_for_metric("governor_proxy_taps", 1)
        repeated = await bed.client.repeat("Version", count=5000, at_once=8)
        # The reader resumes and receives the queued lines, then the number of dropped ones.
        slow.settimeout(60)
        seen = b""
        while b'"lost"' not in seen or not seen.endswith(b"\r\n"):
            seen += await asyncio.to_thread(slow.recv, 65536)

    shown = seen.count(b'"type":"call"')
    lost = json.loads(seen[seen.index(b'{"type":"lost"') :].splitlines()[0])["count"]
    assert repeated.statuses == {"OK": 5000}
    assert shown + lost == 5000
    assert lost > 0


async def test_a_stream_opened_before_the_tap_is_shown_when_it_ends(
    own_bed: Bed, start_hook_plugin: StartHookPlugin
) -> None:
    await hooked(own_bed, await start_hook_plugin())
    async with own_bed.client.stream("GetContainerEvents"):

        async def is_in_progress() -> bool:
            return await own_bed.runtime.open_calls() == 1

        await until(is_in_progress)
        async with tapped(own_bed, "--method", "GetContainerEvents", "--count", "1") as tap:
            await own_bed.runtime.kill()

    [call] = tap.calls
    assert (call["status"], call.get("seconds")) == ("UNAVAILABLE", None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_tap_ends_with_an_error_when_the_proxy_ends(own_bed: Bed, number: signal.Signals) -> None:
    running = await own_bed.proxy.start_command("tap", "-o", "json")
    await running.wait_for_line('"opened"')
    os.kill(own_bed.proxy.pid, number)
    outcome = await running.ended()

    assert (outcome.code, outcome.err) == (11, "error: the runtime proxy closed the connection\n")
