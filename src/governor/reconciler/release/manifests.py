"""Rendered objects as manifests that a cluster accepts."""

from collections.abc import Iterable, Mapping

from governor.kube.applyset.live import find_kinds
from governor.kube.applyset.manifests import Located, defined_kinds, kinds_to_discover
from governor.kube.client import Client
from governor.kube.objects import ApiResource, Object, ObjectRef, group_of, ref_of
from governor.reconciler.render.request import Rendered


async def manifests_of(client: Client, rendered: Rendered) -> list[Object]:
    """Return the rendered definitions and objects as the cluster accepts them."""
    objects = [each.object for each in (*rendered.crds, *rendered.objects)]
    located = [Located("", each) for each in objects]
    served = await find_kinds(client, kinds_to_discover(located))
    known = {**served, **defined_kinds(objects)}
    return [without_namespace(each, known) for each in objects]


def without_namespace(manifest: Object, kinds: Mapping[tuple[str, str, str], ApiResource]) -> Object:
    """Return a manifest without the namespace that charts often give to cluster-scoped objects; Helm ignores it."""
    api_version = manifest["apiVersion"]
    kind = kinds.get((group_of(api_version), api_version.rpartition("/")[2], manifest["kind"]))
    if kind is None or kind.namespaced or "namespace" not in manifest["metadata"]:
        return manifest
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "namespace"}
    return {**manifest, "metadata": metadata}


def is_listed(manifests: Iterable[Object], ref: ObjectRef) -> bool:
    """Return whether the chart itself has the namespace among its objects."""
    return any(
        (group_of(each["apiVersion"]), each["kind"], each["metadata"].get("name")) == (ref.group, ref.kind, ref.name)
        for each in manifests
    )


def rendered_names(rendered: Rendered, namespace: str) -> set[str]:
    """Return the names of all rendered objects, comparable with ``name_of``."""
    refs = [ref_of(each.object) for each in (*rendered.crds, *rendered.objects)]
    return {name_of(each, namespace) for each in refs}


def name_of(ref: ObjectRef, namespace: str) -> str:
    """Return kind, namespace and name; a chart may leave out the namespace, or set one for cluster-scoped objects."""
    return f"{ref.kind}.{ref.group} {ref.namespace or namespace}/{ref.name}"
