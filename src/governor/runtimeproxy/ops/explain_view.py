"""``explain``, the command's side: selects the pod and prints the explanation. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from governor.errors import Detail, GovernorError, Kind, invalid
from governor.runtimeproxy.hooks.changes import FieldPath, MaskedChange, display, truncate
from governor.runtimeproxy.ops.control import (
    ContainerExplanation,
    HookExplanation,
    PodExplanation,
    PodList,
    PodSummary,
    SandboxExplanation,
    Trail,
)
from governor.values.printing import one_line, table

_MAX_ENTRIES: Final = 10


def find_pod(known: PodList, text: str) -> PodSummary:
    """Return the pod with this name, ``namespace/name``, uid, or sandbox id prefix."""
    exact = [each for each in known.pods if text in (each.name, f"{each.namespace}/{each.name}", *each.uids)]
    found = exact or [each for each in known.pods if text and any(own.startswith(text) for own in each.sandboxes)]
    if not found:
        message = f"no pod {text!r} found; use a name, namespace/name, uid or sandbox id"
        raise GovernorError(Kind.NOT_FOUND, "unknown-pod", message)
    if len(found) > 1:
        names = (f"{each.namespace}/{each.name} (uid {', '.join(each.uids) or 'unknown'})" for each in found)
        details = [Detail(one_line(each)) for each in names]
        raise invalid("ambiguous-pod", f"{text!r} matches {len(found)} pods; choose one of", details)
    return found[0]


def explanation_text(found: PodExplanation) -> str:
    """Return the explanation as text."""
    return "\n\n".join(_parts(found))


def _parts(found: PodExplanation) -> Iterator[str]:
    yield one_line(f"Pod {found.namespace}/{found.name}")
    if not found.kept:
        yield "No plugin is registered, so the proxy keeps no records; this comes from the runtime."
    if found.unasked:
        yield one_line(f"No sandbox of it is recorded, and {found.unasked}")
    elif not found.sandboxes:
        yield "It has no sandbox: it never ran or is gone."
    for sandbox in found.sandboxes:
        yield _sandbox(sandbox, found)
    if found.skipped:
        yield one_line(f"No plugin is called: {found.skipped}.")
    called = list(_called(found.hooks))
    if called:
        yield "Plugins called\n" + table(("HOOK", "BY CALL", "TURN", "PLUGIN", "TIMEOUT", "FAILURE", "NOTE"), called)
    others = list(_not_called(found.hooks))
    if others:
        yield "Plugins not called\n" + table(("PLUGIN", "HOOKS", "WHY"), others)
    yield from _trails(found.trails)
    if found.problems:
        yield "\n".join(("Plugin files", *(f"  {one_line(each)}" for each in found.problems)))


def _sandbox(sandbox: SandboxExplanation, found: PodExplanation) -> str:
    changed = {each.path for trail in found.trails for each in trail.changes}
    rows = [
        ("sandbox", f"{sandbox.id} (attempt {sandbox.attempt})"),
        ("uid", sandbox.uid),
        ("runtime handler", sandbox.runtime_handler),
        ("labels", _shown(sandbox.labels, "labels", found.labels_that_matter, changed)),
        ("annotations", _shown(sandbox.annotations, "annotations", found.labels_that_matter, changed)),
        ("cgroup parent", sandbox.cgroup_parent),
        ("resources", _settings(sandbox.resources)),
        ("overhead", _settings(sandbox.overhead)),
    ]
    lines = [f"  {name + ':':<17}{one_line(text)}" for name, text in rows if text]
    containers = [f"\nContainers\n{_containers(sandbox.containers)}"] if sandbox.containers else []
    return "\n".join([*lines, *containers])


def _shown(entries: Mapping[str, str], kind: str, selector_keys: tuple[str, ...], changed: set[FieldPath]) -> str:
    """Return the entries that selectors use or a plugin changed, and the number of the others."""
    first = sorted(entries, key=lambda key: (key not in selector_keys, key))
    keys = [key for key in first if key in selector_keys or (kind, key) in changed][:_MAX_ENTRIES]
    shown = [f"{key}={truncate(entries[key])}" for key in keys]
    others = len(entries) - len(shown)
    return ", ".join([*shown, *([f"{others} not shown here (-o yaml shows them)"] if others else ())])


def _containers(containers: tuple[ContainerExplanation, ...]) -> str:
    rows = [
        (each.name, each.id[:13], each.attempt, _settings(each.resources) or "none set", len(each.environment))
        for each in containers
    ]
    return table(("NAME", "ID", "ATTEMPT", "RESOURCES", "VARIABLES"), rows)


def _settings(values: Mapping[str, Any]) -> str:
    parts = (f"{name}={_entries(value) if isinstance(value, Mapping) else value}" for name, value in values.items())
    return ", ".join(parts)


def _entries(values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {truncate(str(value))}" for key, value in values.items()) + "}"


def _called(hooks: tuple[HookExplanation, ...]) -> Iterator[tuple[str, ...]]:
    for hook in hooks:
        for number, each in enumerate((own for own in hook.plugins if own.asked), 1):
            note = each.why or ("observes: its changes are not made" if each.mode == "observe" else "")
            yield hook.hook, hook.call, f"{number}.", each.plugin, f"{each.timeout_s:g}s", each.policy, note


def _not_called(hooks: tuple[HookExplanation, ...]) -> Iterator[tuple[str, str, str]]:
    """Yield rows grouped by plugin and reason, which mostly applies to all hooks."""
    found: dict[tuple[str, str], list[str]] = {}
    for hook in hooks:
        for each in hook.plugins:
            if not each.asked:
                found.setdefault((each.plugin, each.why), []).append(hook.hook)
    for (plugin, why), names in found.items():
        yield plugin, "all" if len(names) == len(hooks) else ", ".join(names), why


def _trails(trails: tuple[Trail, ...]) -> Iterator[str]:
    for title, header, rows in (
        ("Changed by plugins", ("TIME", "CALL", "CONTAINER", "PLUGIN", "FIELD", "OLD", "NEW"), _changes(trails)),
        (
            "Would be changed by plugins in mode observe",
            ("TIME", "CALL", "CONTAINER", "PLUGIN", "FIELD", "OLD", "NEW"),
            _rows(trails, lambda each: each.observed),
        ),
        ("Conflicts", ("TIME", "CALL", "WHAT"), _notices(trails, lambda each: each.conflicts)),
        (
            "Changes not applicable to the call",
            ("TIME", "CALL", "WHAT"),
            _notices(trails, lambda each: each.unused),
        ),
        ("Failed plugins", ("TIME", "HOOK", "CONTAINER", "PLUGIN", "CALL WAS", "WHY"), _failures(trails)),
        (
            "Calls for which plugins could not be called",
            ("TIME", "CALL", "WHY"),
            _notices(trails, lambda each: (each.unasked,)),
        ),
        (
            "Calls rejected by the proxy",
            ("TIME", "CALL", "WHAT"),
            _notices(trails, lambda each: (each.refusal,)),
        ),
    ):
        if found := list(rows):
            yield f"{title}\n{table(header, found)}"


def _rows(trails: tuple[Trail, ...], changes: Callable[[Trail], tuple[MaskedChange, ...]]) -> Iterator[tuple[str, ...]]:
    for trail in trails:
        for each in changes(trail):
            yield (
                *(_time(trail), trail.call, trail.container),
                *(each.plugin, each.field, display(each.old), display(each.new)),
            )


def _changes(trails: tuple[Trail, ...]) -> Iterator[tuple[str, ...]]:
    for trail in trails:
        yield from _rows((trail,), lambda each: each.changes)
        if trail.left_out:
            yield _time(trail), trail.call, trail.container, "", f"and {trail.left_out} more", "", ""


def _failures(trails: tuple[Trail, ...]) -> Iterator[tuple[str, ...]]:
    for trail in trails:
        for each in trail.asked:
            if each.error:
                effect = "rejected" if trail.refusal else "let through"
                yield _time(trail), each.hook, trail.container, each.plugin, effect, each.error


def _notices(trails: tuple[Trail, ...], texts: Callable[[Trail], tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    for trail in trails:
        for text in texts(trail):
            if text:
                yield _time(trail), f"{trail.call} {trail.container}".rstrip(), text


def _time(trail: Trail) -> str:
    return trail.time.strftime("%Y-%m-%d %H:%M:%SZ")
