"""The second half of the scenario: changes that would take an application down, and their effect on its users."""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from demo import documents
from demo.prober import Prober
from demo.scenario import Scenario, Step, decided, done, show_orders
from demo.steps import NotObservedError, expect
from demo.world import Runtime
from governor.wire.rest import ChangeRequest, RuntimeProgress

PROBE_EVERY_S: Final = 0.04
"""25 requests a second to each application."""

DEAD: Final = "127.0.0.1:1"
REQUESTS_AFTER: Final = 25

UNPARSABLE: Final = "kind: Profile\nmetadata: {name: broken\n"
UNKNOWN_TYPE: Final = """\
apiVersion: runtime-governor.dev/v1alpha1
kind: Profile
metadata: {name: broken}
spec:
  selector: {}
  resources:
  - apiVersion: dapr.io/v1alpha1
    kind: Component
    metadata: {name: statestore2}
    spec: {type: state.reddis, version: v1, metadata: []}
"""


async def reject_by_preflight(scenario: Scenario) -> list[str]:
    """Point runtime 2 to a store that does not answer: preflight rejects it and no request fails."""
    pids = {runtime.name: runtime.sidecar_pid() for runtime in scenario.world.runtimes}
    async with AsyncExitStack() as stack:
        probers = [await stack.enter_async_context(_prober(scenario, runtime)) for runtime in scenario.world.runtimes]
        outcome = await _change(scenario, _dead_store(scenario), "runtime 2 stores its orders at a dead address")
        for prober in probers:
            await prober.more(REQUESTS_AFTER)
    expect("the state of runtime-2", outcome.summary.state, "Failed")
    for runtime, prober in zip(scenario.world.runtimes, probers, strict=True):
        expect_no_failure(runtime.name, prober)
        expect(f"the sidecar of {runtime.name}", runtime.sidecar_pid(), pids[runtime.name])
        scenario.protected_requests += len(prober.answers)
    counts = ", ".join(
        f"{each.name} {len(one.answers)}" for each, one in zip(scenario.world.runtimes, probers, strict=True)
    )
    return [f"runtime-2 rejected the change: {outcome.summary.message}", f"requests meanwhile: {counts}; failed: 0"]


async def roll_back_after_failure(scenario: Scenario) -> list[str]:
    """Apply the same change without preflight: daprd exits and the agent rolls back to the last verified bundle."""
    runtime = scenario.world.runtimes[1]
    before = runtime.sidecar_pid()
    async with _prober(scenario, runtime) as prober:
        outcome = await _change(scenario, _dead_store(scenario, preflight="off"), "the same without preflight")
        await prober.first("foo", since=prober.answers[-1][0])
    expect("the state of runtime-2", outcome.summary.state, "Failed")
    failures = prober.failures()
    if not failures or runtime.sidecar_pid() == before:
        raise NotObservedError("the sidecar was expected to exit on the broken change, but did not")
    scenario.rollback_seconds = failures[-1][0] - failures[0][0]
    lines = await show_orders(scenario, {"runtime-1": "foo", "runtime-2": "foo"})
    return [
        f"runtime-2 rejected the change: {outcome.summary.message}",
        f"requests to runtime-2 meanwhile: {len(prober.answers)}; failed: {len(failures)}",
        f"the last verified bundle was back {scenario.rollback_seconds:.1f} s after the first failed request",
        *lines,
    ]


async def restart_by_policy(scenario: Scenario) -> list[str]:
    """Apply a good change whose policy asks for a restart instead of a reload."""
    world, runtime = scenario.world, scenario.world.runtimes[1]
    before = runtime.sidecar_pid()
    document = documents.orders_of(runtime.name, world.stores[1], strategy="rolling")
    change = await world.api.change(ChangeRequest((document,), message="runtime 2 uses Redis 2 again, by restart"))
    progress = await world.verified(change.revision or 0)
    expect("verified runtimes", done(progress), [runtime.name])
    if runtime.sidecar_pid() == before:
        raise NotObservedError("the sidecar was expected to restart, but did not")
    lines = await show_orders(scenario, {"runtime-1": "foo", "runtime-2": "bar"})
    return [
        f"verified after {progress.runtimes[0].seconds:.2f} s",
        f"daprd was restarted: process {before} before, {runtime.sidecar_pid()} now",
        *lines,
    ]


async def reject_documents(scenario: Scenario) -> list[str]:
    """Apply invalid documents: the server rejects them and stores nothing."""
    before = await scenario.world.api.revisions()
    lines = []
    for name, text in (("unparsable", UNPARSABLE), ("unknown-type", UNKNOWN_TYPE)):
        file = scenario.world.directory / f"{name}.yaml"
        await asyncio.to_thread(file.write_text, text)
        code, error = await _apply(scenario, file)
        expect(f"exit code for an {name} document", code, 3)
        lines.append(f"governor apply: {error.splitlines()[1].strip().replace(str(scenario.world.directory), '.')}")
    expect("revisions", await scenario.world.api.revisions(), before)
    return [*lines, f"revisions before and after: {len(before)}"]


BROKEN_PATH: Final = (
    Step("broken-change", "Apply a broken change: preflight rejects it, no request fails", reject_by_preflight),
    Step("without-preflight", "Apply it without preflight: daprd exits, the agent rolls back", roll_back_after_failure),
    Step("restart", "Apply a good change by restart, as its policy asks", restart_by_policy),
    Step("bad-documents", "Apply invalid documents: the server rejects them", reject_documents),
)


def result(scenario: Scenario) -> str:
    """Return the second half of the summary."""
    return (
        f"with preflight a broken change failed none of {scenario.protected_requests} requests, "
        f"without it the last verified bundle was back after {scenario.rollback_seconds:.1f} s"
    )


def _dead_store(scenario: Scenario, **apply: str) -> dict[str, Any]:
    """Return the profile of runtime 2 with a state store that refuses connections."""
    document = documents.orders_of("runtime-2", scenario.world.stores[0], **apply)
    document["spec"]["resources"][0]["spec"]["metadata"][0]["value"] = DEAD
    return document


def expect_no_failure(runtime: str, prober: Prober) -> None:
    """Raise if a request to a runtime's application has failed."""
    failures = prober.failures()
    if failures:
        raise NotObservedError(f"{len(failures)} requests to {runtime} failed, the first with {failures[0][1][:200]}")


def _prober(scenario: Scenario, runtime: Runtime) -> Prober:
    return Prober(lambda: scenario.world.order(runtime, ""), PROBE_EVERY_S)


async def _change(scenario: Scenario, document: dict[str, Any], message: str) -> RuntimeProgress:
    """Submit a change and wait until runtime 2 has verified or rejected it."""
    change = await scenario.world.api.change(ChangeRequest((document,), message=message))
    return await decided(scenario.world.api, change.revision or 0)


async def _apply(scenario: Scenario, file: Path) -> tuple[int, str]:
    server = scenario.world.server
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "governor.cli.main", "apply", "-f", str(file)),
        *("--server", server.url, "--token-file", str(server.admin_token_file)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await process.communicate()
    return process.returncode or 0, error.decode()
