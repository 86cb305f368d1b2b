"""A controller of a custom resource (sites.yaml) with finalizer, status, conditions and Events."""

import sys

import msgspec

from governor.kube.applyset import Settings
from governor.kube.controller import Context, Controller, EventType, Resource, Status, main
from governor.kube.objects import Object
from governor.process.reconcile.reconciler import Done, Failed, Outcome


class Spec(msgspec.Struct, frozen=True, gc=False):
    """Desired state of a site."""

    image: str
    replicas: int = 1


class SiteStatus(Status, frozen=True):
    """Status of a site, in addition to its conditions."""

    url: str = ""


class Site(Resource, frozen=True, kw_only=True):
    """The fields of a Site that are read and kept in memory."""

    spec: Spec
    status: SiteStatus = SiteStatus()


def desired(site: Site) -> list[Object]:
    """Return the manifests of one site."""
    labels = {"example.dev/site": site.metadata.name}
    container = {"name": "site", "image": site.spec.image, "ports": [{"containerPort": 80}]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": site.metadata.name},
        "spec": {
            "replicas": site.spec.replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": site.metadata.name},
        "spec": {"selector": labels, "ports": [{"port": 80}]},
    }
    return [deployment, service]


async def reconcile(context: Context[Site]) -> Outcome:
    """Apply the manifests of one site and report whether they are ready."""
    converged = await context.converge(desired(context.object))
    ready = converged.condition("Ready")
    url = f"http://{context.key.name}.{context.key.namespace}.svc"
    if await context.write_status(SiteStatus(url=url, conditions=(ready,))):
        event_type = EventType.WARNING if isinstance(converged.outcome, Failed) else EventType.NORMAL
        context.event(ready.reason, ready.message, event_type)
    return converged.outcome


async def finalize(context: Context[Site | None]) -> Outcome:
    """Delete the objects of a site; the finalizer is removed once this is Done."""
    outcome = await context.delete_objects()
    if isinstance(outcome, Done):
        context.event("Deleted", "all objects of the site are deleted")
    return outcome


SITES = Controller(
    "sites",
    ("example.dev", "v1", "Site"),
    Site,
    reconcile,
    settings=Settings(manager="sites-controller", label_prefix="sites.example.dev"),
    finalize=finalize,
    finalizer="example.dev/site",
)
SITES.owns(("apps", "v1", "Deployment")).owns(("", "v1", "Service"))

if __name__ == "__main__":
    sys.exit(main("sites", SITES))
