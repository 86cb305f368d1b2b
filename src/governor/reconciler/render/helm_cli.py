"""The renderer that needs no compiled program of this project: one ``helm template`` per rendering.

It cannot answer ``lookup``, adds the cluster's API versions to those that Helm assumes, and does not know what a chart
has read. What a chart generates is found by rendering it twice.
"""

import asyncio
import contextlib
import os
import re
import resource
from collections.abc import Iterator, Sequence
from typing import Any, Final

from governor.errors import GovernorError, Kind, invalid
from governor.process.child import piped
from governor.reconciler.charts.package import read_all
from governor.reconciler.render import generated, go_yaml, scan
from governor.reconciler.render.documents import checked
from governor.reconciler.render.frames import MAX_BYTES
from governor.reconciler.render.lanes import Lanes
from governor.reconciler.render.linked import Limits, out_of_memory, timed_out
from governor.reconciler.render.masking import sensitive_texts, without_texts
from governor.reconciler.render.request import Document, Hook, Rendered, Request, UnknownHook

PROGRAM: Final = "helm"
_READ_BYTES: Final = 256 * 1024
_SOURCE: Final = re.compile(r"# Source: (.+)")
_SEPARATOR: Final = re.compile(r"(?:\A|\s*\n)---[ \t]*(?:\n|\Z)")
_UNKNOWN_HOOK: Final = re.compile(r'skipping unknown hook: "(.*)"')
_MESSAGE_CHARACTERS: Final = 4096
_FATAL_EXIT_CODE: Final = 2
"""Exit code of Go's runtime if it cannot allocate memory; an error of helm itself has 1."""
_HOOK: Final = "helm.sh/hook"
_TEST_SUCCESS: Final = "test-success"


class HelmRenderer:
    """Renders charts with Helm's command."""

    def __init__(self, program: str, limits: Limits = Limits(), *, size: int = 2) -> None:  # noqa: B008 - frozen
        self._program = program
        self._limits = limits
        self._lanes = Lanes()
        self._slots, self._slow_slot = asyncio.Semaphore(size), asyncio.Semaphore(1)

    async def render(self, request: Request) -> Rendered:
        """Render a chart as soon as fewer than ``size`` others are being rendered."""
        with self._lanes.choose(request) as is_slow:
            async with self._slow_slot if is_slow else self._slots:
                return await self._render_repeatably(request)

    async def _render_repeatably(self, request: Request) -> Rendered:
        """Render a chart, twice if it generates anything."""
        found = await asyncio.to_thread(lambda: scan.scan(read_all(request.chart)))
        if found.lookups and request.lookup is not None:
            message = f"{found.lookups[0]} calls lookup, which needs the program governor-renderer: install it"
            raise GovernorError(Kind.UNIMPLEMENTED, "lookup", message)
        rendered = await self._render(request)
        if not found.generators:
            return rendered
        recording = generated.read_recording(request.recording)
        generated.require_leaves(recording)
        return generated.keep(rendered, await self._render(request), recording)

    async def _render(self, request: Request) -> Rendered:
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(_values_file(each.text.reveal())) for each in request.values]
            try:
                async with asyncio.timeout(self._limits.timeout_s):
                    out, err = await self._run(arguments(request, files), files)
            except TimeoutError as error:
                raise timed_out(self._limits) from error
            except GovernorError as error:
                message = without_texts(error.message, sensitive_texts(request.values))
                raise GovernorError(error.kind, error.code, _shortened(message)) from error
        return checked(parse(out, err))

    async def _run(self, argv: Sequence[str], descriptors: Sequence[int]) -> tuple[str, Sequence[str]]:
        """Run helm and return its output and its messages."""
        env = {"PATH": os.defpath, "HOME": "/nonexistent", "TZ": "UTC"}
        child = await piped.start([self._program, *argv], env=env, descriptors=descriptors)
        try:
            _limit_memory(child.process.pid, self._limits.memory_mib << 20)
            out = await _read(child.reader)
            ended = await child.process.wait()
        finally:
            await child.stop(0)
        if ended.code == _FATAL_EXIT_CODE:
            raise out_of_memory(self._limits)
        if ended.code != 0:
            raise invalid("render-failed", _reason(ended.tail) or f"helm {ended.summary}")
        return out.decode(), ended.tail


def _limit_memory(pid: int, size: int) -> None:
    """Limit the private memory of a process; not its address space, of which Go reserves much more than it uses."""
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_DATA, (size, size))


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return everything up to the end of a stream; raise if it is too much."""
    found = bytearray()
    while part := await reader.read(_READ_BYTES):
        found += part
        if len(found) > MAX_BYTES:
            message = f"the chart renders more than {MAX_BYTES} bytes"
            raise GovernorError(Kind.EXHAUSTED, "render-too-large", message)
    return bytes(found)


@contextlib.contextmanager
def _values_file(text: str) -> Iterator[int]:
    """Yield the descriptor of a file with values, which exists in memory only."""
    descriptor = os.memfd_create("values")
    try:
        with os.fdopen(os.dup(descriptor), "w", encoding="utf-8") as file:
            file.write(text)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def arguments(request: Request, files: Sequence[int]) -> list[str]:
    """Return the arguments of helm for a request with values in these descriptors."""
    capabilities = request.capabilities
    return [
        *("template", request.release_name, str(request.chart), f"--namespace={request.namespace}", "--include-crds"),
        *(f"--values=/proc/self/fd/{each}" for each in files),
        *([f"--kube-version={capabilities.kube_version}"] if capabilities.kube_version else []),
        *(f"--api-versions={each}" for each in capabilities.api_versions or ()),
        *(["--is-upgrade"] if request.is_upgrade else []),
    ]


def _reason(lines: Sequence[str]) -> str:
    """Return what helm has printed as its error."""
    text = "\n".join(line for line in lines if not line.startswith("Use --debug flag"))
    return (text.partition("Error: ")[2] or text).strip()


def _shortened(message: str) -> str:
    """Return a message without its middle if it is long, as that of a recursion is."""
    half = _MESSAGE_CHARACTERS // 2
    return message if len(message) <= _MESSAGE_CHARACTERS else f"{message[:half]} ... {message[-half:]}"


def parse(text: str, messages: Sequence[str]) -> Rendered:
    """Return the result that helm has printed."""
    crds, objects, hooks = [], [], []
    for source, value in _documents(text):
        annotations = _annotations(value)
        if "/crds/" in source and "/templates/" not in source:
            crds.append(Document(source, value))
        elif _HOOK in annotations:
            hooks.append(_hook(source, value, annotations))
        else:
            objects.append(Document(source, value))
    unknown = [UnknownHook(found[1]) for line in messages if (found := _UNKNOWN_HOOK.search(line))]
    return Rendered(tuple(crds), tuple(objects), tuple(hooks), tuple(unknown))


def _documents(text: str) -> Iterator[tuple[str, Any]]:
    source = ""
    for part in _SEPARATOR.split(text):
        if found := _SOURCE.match(part):
            source = found[1]
        for value in go_yaml.load_all(part, source):
            if value is not None:
                yield source, value


def _annotations(value: Any) -> dict[str, Any]:
    metadata = value.get("metadata") if isinstance(value, dict) else None
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def _hook(source: str, value: Any, annotations: dict[str, Any]) -> Hook:
    events = _items(annotations[_HOOK])
    try:
        weight = int(annotations.get("helm.sh/hook-weight", 0))
    except ValueError:
        weight = 0
    policies = _items(annotations.get("helm.sh/hook-delete-policy", ""))
    names = tuple("test" if each == _TEST_SUCCESS else each for each in events)
    return Hook(source, value, names, weight, tuple(policies))


def _items(text: Any) -> list[str]:
    return [each.strip().lower() for each in str(text).split(",")] if text else []
