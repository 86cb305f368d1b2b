"""The charts of the tests, installed as modules: between them they use what public charts use."""

import base64

from governor.kube.objects import ApiResource, Object
from governor.process.bundled_charts import bundled_chart
from governor.reconciler.release.objects import SETTINGS
from tests.contract.kube.applyset.bed import DEFINITIONS, DEPLOYMENTS, SECRETS
from tests.contract.reconciler.hooks.bed import JOBS
from tests.contract.reconciler.render.bed import CHARTS
from tests.contract.reconciler.steps.bed import ModuleBed
from tests.contract.reconciler.steps.test_hooks import complete

STORES = ApiResource("example.com", "v1", "Store", "stores", namespaced=False)


async def test_generated_secrets_and_their_checksums_survive_changes_and_repairs(bed: ModuleBed) -> None:
    await bed.add("generated", chart=CHARTS / "generated")
    await bed.install("generated", "generated")
    await bed.ready_deployment("generated", 1)
    await bed.becomes("generated", "Ready")
    secrets, checksum = await bed.find(SECRETS, "generated-passwords"), await checksum_of(bed)
    assert secrets is not None
    await bed.client.delete(SECRETS, "generated-passwords", bed.space)
    await bed.until(lambda: bed.find(SECRETS, "generated-passwords"))
    await bed.install("generated", "generated", values={"note": "changed"})
    await bed.is_applied("generated", values={"note": "changed"})
    again = await bed.find(SECRETS, "generated-passwords")
    assert again is not None
    assert again["data"] == secrets["data"]
    assert await checksum_of(bed) == checksum


async def checksum_of(bed: ModuleBed) -> str:
    found = await bed.find(DEPLOYMENTS, "generated")
    assert found is not None
    return str(found["spec"]["template"]["metadata"]["annotations"]["checksum/passwords"])


async def test_a_looked_up_size_stays_although_its_value_is_changed(bed: ModuleBed) -> None:
    await bed.add("pinned", chart=CHARTS / "pinned")
    await bed.deploy("pinned")
    await bed.deploy("pinned", values={"size": "2Gi", "note": "larger"})
    assert await bed.data("pinned-volume") == {"size": "1Gi", "note": "larger"}


async def test_subcharts_definitions_hooks_and_kept_resources_of_a_platform(bed: ModuleBed) -> None:
    await bed.add("platform", chart=CHARTS / "platform")
    values = {"store": {"enabled": True}, "console": {"enabled": True}, "global": {"region": "eu"}}
    await bed.install("platform", "platform", values=values)
    await bed.until(lambda: bed.find(JOBS, "prepare"))
    assert await bed.data("platform-title") is None
    assert await bed.find(DEFINITIONS, "things.example.com", "")
    await complete(bed, "prepare")
    await bed.until(lambda: bed.find(JOBS, "finish"))
    await complete(bed, "finish")
    await bed.becomes("platform", "Ready")
    assert await bed.find(JOBS, "prepare") is None
    title, store = await bed.data("platform-title"), await bed.find(STORES, "platform", "")
    assert (title or {})["title"] == "platform in eu"
    assert await bed.data("platform-console") == {"port": "9000", "file": "Hello\n"}
    assert store is not None
    assert store["spec"] == {"size": "1Gi", "region": "eu"}

    await bed.delete("Installation", "platform")
    await bed.until(lambda: bed.find(JOBS, "clean"))
    await complete(bed, "clean")
    await bed.gone("ModuleInstance", "platform.local")
    assert await bed.find(STORES, "platform", "") is not None
    assert await bed.find(DEFINITIONS, "things.example.com", "") is None
    assert await bed.data("platform-title") is None
    await bed.client.delete(DEFINITIONS, "stores.example.com")


async def test_a_small_application_becomes_ready_with_its_workload(bed: ModuleBed) -> None:
    await bed.add("small", chart=CHARTS / "small")
    await bed.install("small", "small", values={"password": "word"})
    await bed.becomes("small", "Processing")
    await bed.ready_deployment("small", 1)
    found = await bed.becomes("small", "Ready")
    assert found["status"]["objects"] == 7
    secret = await bed.find(SECRETS, "small")
    assert secret is not None
    assert base64.b64decode(secret["data"]["password"]) == b"word"


REPEATING = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: repeating}
spec:
  replicas: 1
  selector: {matchLabels: {app: repeating}}
  template:
    metadata: {labels: {app: repeating}}
    spec:
      imagePullSecrets: [{name: registry}, {name: registry}]
      containers:
      - name: main
        image: example/one
        env: [{name: LEVEL, value: info}, {name: PORT, value: "80"}, {name: LEVEL, value: debug}]
        ports: [{containerPort: 80}, {containerPort: 80}]
"""


async def test_entries_that_a_chart_repeats_count_as_in_the_pod(bed: ModuleBed) -> None:
    """Helm can install such a chart; a server-side apply of it is refused."""
    await bed.add("repeating", chart=bed.write_chart("repeating", deployment=REPEATING))
    await bed.install("repeating", "repeating")
    await bed.is_applied("repeating")
    found = await bed.find(DEPLOYMENTS, "repeating")
    assert found is not None
    pod = found["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["containers"][0]["env"] == [{"name": "PORT", "value": "80"}, {"name": "LEVEL", "value": "debug"}]
    assert [each["containerPort"] for each in pod["containers"][0]["ports"]] == [80]


async def test_our_agents_chart_keeps_the_definition_that_its_module_has_installed(bed: ModuleBed) -> None:
    """It looks whether another owner has installed the definition, so that a module finds its own."""
    definition = "runtimestatuses.runtime-governor.dev"
    await bed.add("governor-agent", chart=bundled_chart("governor-agent"))
    values: Object = {"image": {"repository": "example/governor"}, "namespaces": [bed.space]}
    values |= {"podDisruptionBudget": {"enabled": False}}  # no controller would count its pods
    await bed.install("governor-agent", "governor-agent", values=values)
    await bed.ready_deployment("governor-agent", 2)
    before = await bed.becomes("governor-agent", "Ready")
    await bed.scale("governor-agent", 5)  # a repair renders the chart again
    await bed.has_replicas("governor-agent", 2)
    await bed.ready_deployment("governor-agent", 2)
    await bed.becomes("governor-agent", "Ready")
    values |= {"resyncInterval": 301}
    await bed.install("governor-agent", "governor-agent", values=values)
    await bed.is_applied("governor-agent", values=values)
    await bed.ready_deployment("governor-agent", 2)
    after = await bed.becomes("governor-agent", "Ready", values=values)
    assert after["status"]["objects"] == before["status"]["objects"]
    live = await bed.find(DEFINITIONS, definition, "")
    assert live is not None
    assert live["metadata"]["labels"][SETTINGS.owner_label] == f"governor-agent.{bed.namespace}"
    await bed.delete("Installation", "governor-agent")
    await bed.gone("ModuleInstance", "governor-agent.local")
    await bed.client.delete(DEFINITIONS, definition)
