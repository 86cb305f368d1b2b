"""The broken path: changes that would take an application down, and what its users notice of them."""

import asyncio
import sys
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, Final

from demo import documents
from demo.prober import Prober
from demo.scenario import NotObservedError, Step, Story, done, expect, show_orders
from demo.world import Runtime
from governor.wire.rest import ChangeRequest, RuntimeProgress

PROBE_EVERY_S: Final = 0.04
"""25 requests a second to each application."""

DEAD: Final = "127.0.0.1:1"
SETTLED_REQUESTS: Final = 25

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


async def refuse_by_preflight(story: Story) -> list[str]:
    """A store that does not answer: a throw-away sidecar finds it out, and no user notices."""
    pids = {runtime.name: runtime.sidecar_pid() for runtime in story.world.runtimes}
    async with AsyncExitStack() as stack:
        probers = [await stack.enter_async_context(_prober(story, runtime)) for runtime in story.world.runtimes]
        outcome = await _change(story, _dead_store(story), "runtime 2 keeps its orders nowhere")
        for prober in probers:
            await prober.more(SETTLED_REQUESTS)
    expect("the state of runtime-2", outcome.summary.state, "Failed")
    for runtime, prober in zip(story.world.runtimes, probers, strict=True):
        _expect_no_failure(runtime, prober)
        expect(f"the sidecar of {runtime.name}", runtime.sidecar_pid(), pids[runtime.name])
        story.protected_requests += len(prober.answers)
    counts = ", ".join(
        f"{each.name} {len(one.answers)}" for each, one in zip(story.world.runtimes, probers, strict=True)
    )
    return [f"runtime-2 refused it: {outcome.summary.message}", f"requests meanwhile: {counts}; failed: 0"]


async def return_after_failure(story: Story) -> list[str]:
    """The same without preflight: the sidecar dies, as Dapr's does, and the agent returns to the last good bundle."""
    runtime = story.world.runtimes[1]
    before = runtime.sidecar_pid()
    async with _prober(story, runtime) as prober:
        outcome = await _change(story, _dead_store(story, preflight="off"), "the same without preflight")
        await prober.first("foo", since=prober.answers[-1][0])
    expect("the state of runtime-2", outcome.summary.state, "Failed")
    failures = prober.failures()
    if not failures or runtime.sidecar_pid() == before:
        raise NotObservedError("the sidecar was expected to die of the broken change, and did not")
    story.return_seconds = failures[-1][0] - failures[0][0]
    lines = await show_orders(story, {"runtime-1": "foo", "runtime-2": "foo"})
    return [
        f"runtime-2 refused it: {outcome.summary.message}",
        f"requests to runtime-2 meanwhile: {len(prober.answers)}; failed: {len(failures)}",
        f"the last good bundle answered again {story.return_seconds:.1f} s after the first failure",
        *lines,
    ]


async def restart_by_policy(story: Story) -> list[str]:
    """A good change that the apply policy has taken by restarts instead of reloads."""
    world, runtime = story.world, story.world.runtimes[1]
    before = runtime.sidecar_pid()
    document = documents.orders_of(runtime.name, world.stores[1], strategy="rolling")
    change = await world.api.change(ChangeRequest((document,), message="runtime 2 back to Redis 2, by restart"))
    progress = await world.verified(change.revision or 0)
    expect("verified runtimes", done(progress), [runtime.name])
    if runtime.sidecar_pid() == before:
        raise NotObservedError("the sidecar was expected to be restarted, and was not")
    lines = await show_orders(story, {"runtime-1": "foo", "runtime-2": "bar"})
    return [
        f"verified after {progress.runtimes[0].seconds:.2f} s in process {runtime.sidecar_pid()}, was {before}",
        *lines,
    ]


async def refuse_documents(story: Story) -> list[str]:
    """Documents that are wrong in themselves go nowhere."""
    before = await story.world.api.revisions()
    lines = []
    for name, text in (("unparsable", UNPARSABLE), ("unknown-type", UNKNOWN_TYPE)):
        file = story.world.directory / f"{name}.yaml"
        await asyncio.to_thread(file.write_text, text)
        code, error = await _apply(story, file)
        expect(f"exit code for an {name} document", code, 3)
        lines.append(f"governor apply: {error.splitlines()[1].strip().replace(str(story.world.directory), '.')}")
    expect("revisions", await story.world.api.revisions(), before)
    return [*lines, f"revisions before and after: {len(before)}"]


BROKEN_PATH: Final = (
    Step("broken-change", "A broken change: preflight refuses it, no request fails", refuse_by_preflight),
    Step("without-preflight", "The same without preflight: the sidecar dies, the agent returns", return_after_failure),
    Step("restart", "A good change by restart, because the policy asks for it", restart_by_policy),
    Step("bad-documents", "Wrong documents are refused before anything is sent", refuse_documents),
)


def result(story: Story) -> str:
    """The second half of the sentence that sums the demo up."""
    return (
        f"a broken change failed none of {story.protected_requests} requests, "
        f"and without preflight the last good bundle was back after {story.return_seconds:.1f} s"
    )


def _dead_store(story: Story, **apply: str) -> dict[str, Any]:
    """The profile of runtime 2 with a state store that refuses connections."""
    document = documents.orders_of("runtime-2", story.world.stores[0], **apply)
    document["spec"]["resources"][0]["spec"]["metadata"][0]["value"] = DEAD
    return document


def _expect_no_failure(runtime: Runtime, prober: Prober) -> None:
    failures = prober.failures()
    if failures:
        raise NotObservedError(
            f"{len(failures)} requests to {runtime.name} failed, the first with {failures[0][1][:200]}"
        )


def _prober(story: Story, runtime: Runtime) -> Prober:
    return Prober(story.world, runtime, PROBE_EVERY_S)


async def _change(story: Story, document: dict[str, Any], message: str) -> RuntimeProgress:
    """Submit a change and wait until runtime 2 has taken or refused it."""
    change = await story.world.api.change(ChangeRequest((document,), message=message))
    async with asyncio.timeout(120), aclosing(story.world.api.progress(change.revision or 0)) as stream:
        async for progress in stream:
            (only,) = progress.runtimes
            if only.done or only.summary.state in ("Failed", "Unproven"):
                return only
    raise NotObservedError("the server ended the progress of a change that is not decided")


async def _apply(story: Story, file: Path) -> tuple[int, str]:
    server = story.world.server
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "governor.cli.main", "apply", "-f", str(file)),
        *("--server", server.url, "--token-file", str(server.admin_token_file)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await process.communicate()
    return process.returncode or 0, error.decode()
