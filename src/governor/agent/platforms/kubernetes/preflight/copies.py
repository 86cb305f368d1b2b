"""The copies of resources that a throw-away sidecar in a cluster loads, and nothing else of its namespace. Pure.

A copy needs a name of its own, and references to other copies change with it. The sidecar also gets every Component of
the namespace that has no scopes. Its Configuration denies these by type and version. Dapr compares a denied version
exactly but ignores its case when it creates a component, so a copy of the same type and version is spelt otherwise.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from governor.agent.platforms.kubernetes.resources.manifests import referenced_secrets
from governor.agent.verification.preflight_plan import PreflightPlan, plan_preflight
from governor.agent.verification.resources import named_stores
from governor.agent.verification.verdicts import Verdict, Verdicts
from governor.domain.documents import ResourceRef
from governor.domain.reports import State
from governor.values.trees import Manifest, Tree

_MAX_NAME: Final = 253
_DEFAULT_VERSION: Final = "v1"
_FIRST_VERSIONS: Final = ("v1", "V1", "v0", "V0")
"""Spellings of the first version of a component, which Dapr treats alike."""
_NOTHING: Final = "runtime-governor.nothing/v1"
"""A denied component that does not exist: with any entry Dapr denies components without a version too."""
_PIPELINES: Final = ("httpPipeline", "appHttpPipeline")
_UNAVOIDABLE: Final = "Components without scopes use every spelling of its version, and would be loaded too"


class Copies(msgspec.Struct, frozen=True):
    """The preflight of one group of sidecars: a plan in terms of copies, and the way back to the originals.

    ``secrets`` are the Secrets that the copies read. ``denied`` is for the Configuration. ``texts`` maps how daprd
    names a copy to the name of the original.
    """

    plan: PreflightPlan
    secrets: tuple[Manifest, ...]
    denied: tuple[str, ...]
    originals: Mapping[ResourceRef, ResourceRef]
    texts: Mapping[str, str]

    def verdicts_on_originals(self, verdicts: Verdicts) -> Verdicts:
        """Return verdicts on copies as verdicts on the resources of the change."""
        return {
            self.originals[ref]: Verdict(each.state, self.in_original_terms(each.text))
            for ref, each in verdicts.items()
            if ref in self.originals
        }

    def in_original_terms(self, text: str) -> str:
        """Return a text of daprd with the names of the originals."""
        for copy, original in self.texts.items():
            text = text.replace(copy, original)
        return text


def make_copies(
    changed: Iterable[ResourceRef],
    loaded: Mapping[ResourceRef, Manifest],
    secrets: Mapping[ResourceRef, Manifest],
    live: Iterable[Manifest],
    app_id: str,
) -> Copies:
    """Return the copies for a throw-away sidecar.

    ``loaded`` is all that the group's sidecars will load, ``secrets`` those of the delivery by resource, and ``live``
    what is in the namespace now.
    """
    suffix = app_id.rpartition("-")[2]
    unscoped = [each for each in live if not each.get("scopes")]
    taken = {_typed(each) for each in unscoped if each["kind"] == "Component"}
    versions = {ref: _spelling(each, taken) for ref, each in loaded.items() if ref.kind == "Component"}
    copied = {ref: ResourceRef(ref.kind, ref.namespace, _copy_name(ref.name, suffix)) for ref in loaded}
    secret_names = {ref: f"{app_id}-{number}" for number, ref in enumerate(sorted(secrets.keys() & loaded.keys()))}
    renamed = {
        copied[ref]: _renamed(ref, each, copied, versions, secrets, secret_names) for ref, each in loaded.items()
    }
    plan = plan_preflight((copied[ref] for ref in changed), renamed, app_id)
    originals = {copy: ref for ref, copy in copied.items()}
    used = {originals[copy] for copy in (*plan.tried, *plan.dependencies)}
    if any(versions.get(ref) is None for ref in used if ref.kind == "Component"):
        skipped = {**plan.skipped, **dict.fromkeys(plan.tried, _UNAVOIDABLE)}
        plan, used = PreflightPlan(app_id, skipped=skipped), set()
    return Copies(
        msgspec.structs.replace(plan, foreign=_foreign_names(unscoped)),
        tuple(_secret(secrets[ref], name) for ref, name in secret_names.items() if ref in used),
        (_NOTHING, *sorted(f"{kind}/{version}" for kind, version in taken if version)),
        originals,
        _texts(loaded, copied, versions),
    )


def attributed(verdicts: Verdicts, delivered: Iterable[ResourceRef], live: Iterable[Manifest]) -> Verdicts:
    """Return the verdicts on delivered resources; a Component of another owner fails the changed store that it reads.

    A restart would let its sidecars read their secrets again, and they would exit.
    """
    own = {ref: verdicts[ref] for ref in delivered if ref in verdicts}
    components = {each["metadata"]["name"]: each for each in live if each["kind"] == "Component"}
    failed = {ref: each for ref, each in verdicts.items() if ref not in own and each.state is State.FAILED}
    for reader, each in failed.items():
        read = named_stores(components.get(reader.name, {}))
        text = f"{reader} of another owner, which reads secrets from it, cannot be initialised: {each.text}"
        own |= {ref: Verdict(State.FAILED, text) for ref in own if ref.kind == "Component" and ref.name in read}
    return own


def with_denied(configuration: Manifest, denied: Iterable[str]) -> Manifest:
    """Return a Configuration that lets a sidecar ignore some types and versions of Components."""
    spec = configuration.get("spec") or {}
    components = spec.get("components") or {}
    deny = [*(components.get("deny") or ()), *denied]
    return {**configuration, "spec": {**spec, "components": {**components, "deny": deny}}}


def _typed(component: Manifest) -> tuple[str, str]:
    return str(component["spec"].get("type", "")), str(component["spec"].get("version") or "")


def _spelling(component: Manifest, taken: set[tuple[str, str]]) -> str | None:
    """Return the version of a copy that no denied Component has, or None."""
    kind, version = _typed(component)
    version = version or _DEFAULT_VERSION
    others = _FIRST_VERSIONS if version in _FIRST_VERSIONS else (version.swapcase(),)
    return next((each for each in (version, *others) if (kind, each) not in taken), None)


def _copy_name(name: str, suffix: str) -> str:
    return f"{name[: _MAX_NAME - len(suffix) - 1].rstrip('-.')}-{suffix}"


def _renamed(
    ref: ResourceRef,
    manifest: Manifest,
    copied: Mapping[ResourceRef, ResourceRef],
    versions: Mapping[ResourceRef, str | None],
    secrets: Mapping[ResourceRef, Manifest],
    secret_names: Mapping[ResourceRef, str],
) -> Manifest:
    """Return a resource under the name of its copy, with references to the other copies."""
    components = {each.name: copy.name for each, copy in copied.items() if each.kind == "Component"}
    own_secret = {secrets[ref]["metadata"]["name"]: secret_names[ref]} if ref in secret_names else {}
    changed = _with_references(manifest, components, own_secret)
    changed = {**changed, "metadata": {"name": copied[ref].name, "namespace": ref.namespace}}
    if ref.kind == "Component" and versions[ref] is not None:
        changed["spec"] = {**changed["spec"], "version": versions[ref]}
    if ref.kind == "Configuration":
        by_name = {each.name: version for each, version in versions.items() if version is not None}
        changed["spec"] = _with_handlers(changed.get("spec") or {}, components, by_name)
    return changed


def _with_references(tree: Tree, stores: Mapping[str, str], secrets: Mapping[str, str]) -> Any:
    """Return a tree in which names of secret stores and of Secrets are those of the copies."""
    if isinstance(tree, dict):
        found = {key: _with_references(value, stores, secrets) for key, value in tree.items()}
        if isinstance(found.get("secretStore"), str):
            found["secretStore"] = stores.get(found["secretStore"], found["secretStore"])
        if isinstance(found.get("secretKeyRef"), dict):
            reference = found["secretKeyRef"]
            found["secretKeyRef"] = {**reference, "name": secrets.get(reference.get("name"), reference.get("name"))}
        return found
    return [_with_references(each, stores, secrets) for each in tree] if isinstance(tree, (list, tuple)) else tree


def _with_handlers(spec: Tree, names: Mapping[str, str], versions: Mapping[str, str]) -> Tree:
    """Return the spec of a Configuration whose pipelines name the copies of middleware; Dapr compares versions too."""
    changed = dict(spec)
    for pipeline in _PIPELINES:
        if handlers := (spec.get(pipeline) or {}).get("handlers"):
            copies = [
                {**each, "name": names[each["name"]], "version": versions[each["name"]]}
                if each.get("name") in names and each["name"] in versions
                else each
                for each in handlers
            ]
            changed[pipeline] = {**spec[pipeline], "handlers": copies}
    return changed


def _secret(secret: Manifest, name: str) -> Manifest:
    return {**secret, "metadata": {"name": name, "namespace": secret["metadata"]["namespace"]}}


def _foreign_names(unscoped: Iterable[Manifest]) -> frozenset[str]:
    """Return the names that an error about other resources contains: a Secret that Dapr's operator reads, or a server.

    Nothing denies an MCPServer, and the operator fails the list of all Components for one Secret that does not exist.
    """
    names = {secret for each in unscoped for secret in referenced_secrets(each)}
    return frozenset(names | {each["metadata"]["name"] for each in unscoped if each["kind"] == "MCPServer"})


def _texts(
    loaded: Mapping[ResourceRef, Manifest],
    copied: Mapping[ResourceRef, ResourceRef],
    versions: Mapping[ResourceRef, str | None],
) -> dict[str, str]:
    texts = {copy.name: ref.name for ref, copy in copied.items()}
    for ref, version in versions.items():
        kind, original = _typed(loaded[ref])
        if version and version != original:
            texts[f"({kind}/{version})"] = f"({kind}/{original})"
    return texts
