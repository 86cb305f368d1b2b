"""A small controller: each ConfigMap with the label ``example.dev/page=yes`` gets a Deployment that serves it."""

import sys

import msgspec

from governor.kube.applyset import Settings
from governor.kube.controller import Context, Controller, main
from governor.kube.objects import Object
from governor.kube.reflector import View
from governor.process.reconcile.reconciler import Outcome


class Data(msgspec.Struct, frozen=True, gc=False):
    """Content of a page."""

    image: str = "nginx"
    replicas: str = "1"


class Page(View, frozen=True):
    """The fields of a ConfigMap that are read and kept in memory."""

    data: Data = Data()


def desired(page: Page) -> list[Object]:
    """Return the manifests of one page; pure, so that it can be tested without a server."""
    labels = {"example.dev/serves": page.metadata.name}
    container = {"name": "page", "image": page.data.image}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": page.metadata.name},
        "spec": {
            "replicas": int(page.data.replicas),
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    return [deployment]


async def reconcile(context: Context[Page]) -> Outcome:
    """Apply the manifests of one page; the objects of a deleted page are deleted without further code."""
    return (await context.converge(desired(context.object))).outcome


PAGES = Controller(
    "pages",
    ("", "v1", "ConfigMap"),
    Page,
    reconcile,
    settings=Settings(manager="pages-controller", label_prefix="example.dev"),
    labels="example.dev/page=yes",
).owns(("apps", "v1", "Deployment"))

if __name__ == "__main__":
    sys.exit(main("pages", PAGES))
