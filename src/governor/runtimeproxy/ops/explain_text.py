"""``explain``: which pod is meant, and what is known about it in words. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from governor.errors import Detail, GovernorError, Kind, invalid
from governor.runtimeproxy.hooks.changes import FieldPath, in_words, short
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

_MOST_ENTRIES: Final = 10


def meant(known: PodList, text: str) -> PodSummary:
    """The pod that a person means by its name, ``namespace/name``, uid, or the beginning of a sandbox's id."""
    exact = [each for each in known.pods if text in (each.name, f"{each.namespace}/{each.name}", *each.uids)]
    found = exact or [each for each in known.pods if text and any(own.startswith(text) for own in each.sandboxes)]
    if not found:
        message = f"there is no pod {text!r}; give its name, namespace/name, uid or the id of its sandbox"
        raise GovernorError(Kind.NOT_FOUND, "unknown-pod", message)
    if len(found) > 1:
        names = (f"{each.namespace}/{each.name} (uid {', '.join(each.uids) or 'unknown'})" for each in found)
        details = [Detail(one_line(each)) for each in names]
        raise invalid("ambiguous-pod", f"{text!r} may be one of {len(found)} pods; name one as", details)
    return found[0]


def explanation_text(found: PodExplanation) -> str:
    """For people."""
    return "\n\n".join(_parts(found))


def _parts(found: PodExplanation) -> Iterator[str]:
    yield one_line(f"Pod {found.namespace}/{found.name}")
    if not found.kept:
        yield "No plugin is registered, so the proxy remembers nothing: the runtime was asked just now."
    if found.unasked:
        yield one_line(f"No sandbox of it is known here, and {found.unasked}")
    elif not found.sandboxes:
        yield "It has no sandbox: it never ran, or is gone."
    for sandbox in found.sandboxes:
        yield _sandbox(sandbox, found)
    if found.skipped:
        yield one_line(f"No plugin is asked: {found.skipped}.")
    asked = list(_asked(found.hooks))
    if asked:
        yield "Plugins that are asked\n" + table(
            ("HOOK", "BY CALL", "TURN", "PLUGIN", "TIMEOUT", "FAILURE", "NOTE"), asked
        )
    others = list(_not_asked(found.hooks))
    if others:
        yield "Plugins that are not asked\n" + table(("PLUGIN", "HOOKS", "WHY"), others)
    yield from _happened(found.trails)
    if found.problems:
        yield "\n".join(("Plugins' files", *(f"  {one_line(each)}" for each in found.problems)))


def _sandbox(sandbox: SandboxExplanation, found: PodExplanation) -> str:
    changed = {each.path for trail in found.trails for each in trail.changes}
    rows = [
        ("sandbox", f"{sandbox.id} (attempt {sandbox.attempt})"),
        ("uid", sandbox.uid),
        ("runtime handler", sandbox.runtime_handler),
        ("labels", _chosen(sandbox.labels, "labels", found.labels_that_matter, changed)),
        ("annotations", _chosen(sandbox.annotations, "annotations", found.labels_that_matter, changed)),
        ("cgroup parent", sandbox.cgroup_parent),
        ("resources", _settings(sandbox.resources)),
        ("overhead", _settings(sandbox.overhead)),
    ]
    lines = [f"  {name + ':':<17}{one_line(text)}" for name, text in rows if text]
    containers = [f"\nContainers\n{_containers(sandbox.containers)}"] if sandbox.containers else []
    return "\n".join([*lines, *containers])


def _chosen(entries: Mapping[str, str], kind: str, mattering: tuple[str, ...], changed: set[FieldPath]) -> str:
    """Those on which it depends who is asked, and those that a plugin changed; of the others how many there are."""
    first = sorted(entries, key=lambda key: (key not in mattering, key))
    chosen = [key for key in first if key in mattering or (kind, key) in changed][:_MOST_ENTRIES]
    shown = [f"{key}={short(entries[key])}" for key in chosen]
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
    return "{" + ", ".join(f"{key}: {short(str(value))}" for key, value in values.items()) + "}"


def _asked(hooks: tuple[HookExplanation, ...]) -> Iterator[tuple[str, ...]]:
    for hook in hooks:
        for number, each in enumerate((own for own in hook.plugins if own.asked), 1):
            note = f"left alone for now: {each.why}" if each.why else ""
            yield hook.hook, hook.call, f"{number}.", each.plugin, f"{each.timeout_s:g}s", each.policy, note


def _not_asked(hooks: tuple[HookExplanation, ...]) -> Iterator[tuple[str, str, str]]:
    """By plugin and reason, as one reason is mostly that of all its hooks."""
    found: dict[tuple[str, str], list[str]] = {}
    for hook in hooks:
        for each in hook.plugins:
            if not each.asked:
                found.setdefault((each.plugin, each.why), []).append(hook.hook)
    for (plugin, why), names in found.items():
        yield plugin, "all" if len(names) == len(hooks) else ", ".join(names), why


def _happened(trails: tuple[Trail, ...]) -> Iterator[str]:
    for title, header, rows in (
        ("Changed by plugins", ("TIME", "CALL", "CONTAINER", "PLUGIN", "FIELD", "OLD", "NEW"), _changes(trails)),
        ("Conflicts", ("TIME", "CALL", "WHAT"), _remarks(trails, lambda each: each.conflicts)),
        ("Changes without a place", ("TIME", "CALL", "WHAT"), _remarks(trails, lambda each: each.unused)),
        ("Plugins that failed", ("TIME", "HOOK", "CONTAINER", "PLUGIN", "CALL WAS", "WHY"), _failures(trails)),
        ("Plugins could not be asked", ("TIME", "CALL", "WHY"), _remarks(trails, lambda each: (each.unasked,))),
        (
            "Kubelet was told in the runtime's place",
            ("TIME", "CALL", "WHAT"),
            _remarks(trails, lambda each: (each.refusal,)),
        ),
    ):
        if found := list(rows):
            yield f"{title}\n{table(header, found)}"


def _changes(trails: tuple[Trail, ...]) -> Iterator[tuple[str, ...]]:
    for trail in trails:
        for each in trail.changes:
            yield (
                *(_time(trail), trail.call, trail.container),
                *(each.plugin, each.field, in_words(each.old), in_words(each.new)),
            )
        if trail.left_out:
            yield _time(trail), trail.call, trail.container, "", f"and {trail.left_out} more", "", ""


def _failures(trails: tuple[Trail, ...]) -> Iterator[tuple[str, ...]]:
    for trail in trails:
        for each in trail.asked:
            if each.error:
                fate = "refused" if trail.refusal else "let through"
                yield _time(trail), each.hook, trail.container, each.plugin, fate, each.error


def _remarks(trails: tuple[Trail, ...], told: Callable[[Trail], tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    for trail in trails:
        for text in told(trail):
            if text:
                yield _time(trail), f"{trail.call} {trail.container}".rstrip(), text


def _time(trail: Trail) -> str:
    return trail.time.strftime("%Y-%m-%d %H:%M:%SZ")
