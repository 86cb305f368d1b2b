"""What a module would consist of on a cluster: rendered from documents or from a hub, without writing anything."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from governor.errors import GovernorError, Kind, invalid
from governor.kube.client import Client
from governor.reconciler.charts.access import Access, read_access
from governor.reconciler.charts.cache import ChartCache
from governor.reconciler.kinds.definition import Values
from governor.reconciler.kinds.module import Chart, Module
from governor.reconciler.kinds.module_instance import ModuleInstance, ModuleInstanceSpec
from governor.reconciler.kinds.state import Problem
from governor.reconciler.render.installed import installed_renderer
from governor.reconciler.render.masking import manifests_text
from governor.reconciler.render.request import Capabilities, Layer, Lookup, Rendered, Request
from governor.reconciler.render.target import capabilities_of, lookup_in
from governor.reconciler.resolution.documents import Documents, read_documents
from governor.reconciler.resolution.resolution import resolve
from governor.reconciler.steps.inputs import layers_of
from governor.values.printing import listed
from governor.values.secret import Secret


class Preview(msgspec.Struct, frozen=True):
    """A module on a cluster, resolved, and what its chart may ask."""

    spec: ModuleInstanceSpec
    chart: Chart
    values: tuple[Layer, ...]
    capabilities: Capabilities = Capabilities()
    lookup: Lookup | None = None
    access: Access = Access()
    """Access to the server of the chart."""
    is_upgrade: bool = False
    recording: Secret | None = None
    """What the chart has generated before."""


def from_documents(texts: Mapping[str, str], name: str, cluster: str, capabilities: Capabilities) -> Preview:
    """Return the preview of a module that documents define; without a name there must be one only."""
    outcome, module = resolved(read_documents(texts), name, cluster)
    if outcome.values_from:
        message = "valuesFrom needs a hub: name the module without -f, or write the values into the Installation"
        raise invalid("values-from", message)
    chart = module.spec.chart
    if chart.credentials_secret or chart.ca_secret or chart.config_map:
        raise invalid("credentials", "a chart that needs a Secret or is in a ConfigMap needs a hub: use no -f")
    values = tuple(map(_layer, (module.spec.values, outcome.values)))
    return Preview(outcome, module.spec.chart, values, capabilities)


def resolved(documents: Documents, name: str, cluster: str) -> tuple[ModuleInstanceSpec, Module]:
    """Return what a module must be on a cluster, and its Module; raise if it cannot be resolved."""
    if cluster not in documents.clusters:
        raise invalid("cluster", f"no Cluster is called {cluster}: add it to the files, or name another")
    resolution = resolve(documents.catalogue, documents.clusters[cluster])
    found = {each.module: each.outcome for each in resolution.placements}
    outcome = found[_one(found, name, cluster)]
    if isinstance(outcome, Problem):
        raise invalid(outcome.reason, outcome.message)
    module = documents.catalogue.module(outcome.module, outcome.version)
    assert isinstance(module, Module)  # noqa: S101 - resolved
    return outcome, module


def _one(found: Mapping[str, object], name: str, cluster: str) -> str:
    if name in found:
        return name
    if name or not found:
        others = f"; the files install {listed(sorted(found))} there" if found else "; --cluster names another"
        message = f"no Installation in the files enables {name or 'a module'} on the cluster {cluster!r}{others}"
        raise invalid("module", message)
    if len(found) > 1:
        raise invalid("module", f"the files install {listed(sorted(found))}: name one of them")
    return next(iter(found))


def _layer(values: Values) -> Layer:
    return Layer(Secret(msgspec.json.encode(values).decode()))


async def from_hub(hub: Client, target: Client, instance: ModuleInstance, module: Module) -> Preview:
    """Return the preview of a module on a cluster of a hub, as the reconciler would render it now."""
    layers = await layers_of(hub, instance, module, {})
    if isinstance(layers, Problem):
        raise GovernorError(Kind.PRECONDITION, "values", layers.message)
    chart = module.spec.chart
    host = urlsplit(chart.oci or chart.archive or "").netloc
    access = await read_access(hub, instance.metadata.namespace, chart, host)
    return Preview(instance.spec, chart, layers, await capabilities_of(target), lookup_in(target), access)


async def render(preview: Preview) -> Rendered:
    """Render a preview with what is installed on this machine."""
    with tempfile.TemporaryDirectory(prefix="governor-charts-") as scratch:
        chart = await ChartCache(Path(scratch)).provide(preview.chart, preview.access)
        request = Request(
            chart=chart,
            chart_digest=preview.chart.digest,
            release_name=preview.spec.release_name,
            namespace=preview.spec.namespace,
            values=preview.values,
            capabilities=preview.capabilities,
            lookup=preview.lookup,
            is_upgrade=preview.is_upgrade,
            recording=preview.recording,
        )
        async with installed_renderer(size=1) as renderer:
            return await renderer.render(request)


def text_of(rendered: Rendered, preview: Preview) -> str:
    """Return a rendering as YAML without secrets."""
    return manifests_text(rendered, preview.values)
