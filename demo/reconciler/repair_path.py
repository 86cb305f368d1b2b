"""What others change: it is repaired, or refused by the API server."""

from typing import Final

from demo.reconciler import documents
from demo.reconciler.documents import FIRST, ORDERS, SECOND, SHOP, SPACE
from demo.reconciler.scenario import Scenario, Step
from demo.steps import expect
from governor.reconciler.kinds.state import State
from toolchain.errors import TestbedError

_USER: Final = "jane"
_EDIT: Final = '{"data": {"order": "#!/bin/sh\\necho closed"}}'


async def repair(scenario: Scenario) -> list[str]:
    """Delete an object of a module and edit another: both are as before."""
    world = scenario.world
    before = await world.read(f"service/{SHOP}", SPACE)
    greeting = (await world.read(f"configmap/{SHOP}", SPACE))["data"]["greeting"]
    await world.kubectl("delete", f"service/{SHOP}", space=SPACE)
    await world.kubectl("patch", f"configmap/{SHOP}", '--patch={"data": {"greeting": "closed"}}', space=SPACE)

    async def is_repaired() -> bool:
        service, content = [await world.read(f"{kind}/{SHOP}", SPACE) for kind in ("service", "configmap")]
        uid = service.get("metadata", {}).get("uid", before["metadata"]["uid"])
        return bool(uid != before["metadata"]["uid"] and content["data"]["greeting"] == greeting)

    await world.observed(is_repaired, lambda: "the Service and the ConfigMap are not as before")
    answer = await world.shows(f"shop {SECOND}: ")
    lines = [
        f"the deleted Service exists again, the ConfigMap says {greeting!r} again",
        f"the web site answers: {answer}",
    ]
    return [*lines, *await world.reaches(State.READY, store=FIRST, orders=SECOND, shop=SECOND)]


async def refuse(scenario: Scenario) -> list[str]:
    """Edit a protected object as a user who may edit everything there; then restart its pods, which is allowed."""
    world = scenario.world
    await world.apply(documents.editor(_USER))
    edit = ("patch", f"configmap/{ORDERS}", f"--patch={_EDIT}", f"--as={_USER}")
    refusal = ""

    async def is_refused() -> bool:
        nonlocal refusal
        try:
            await world.kubectl(*edit, "--dry-run=server", space=SPACE)
        except TestbedError as error:
            refusal = str(error).rpartition("failed: ")[2].strip()
        return "ValidatingAdmissionPolicy" in refusal

    # The API server evaluates a policy some time after it was created.
    await world.observed(is_refused, lambda: f"{_USER} may edit the ConfigMap: {refusal}")
    before = await world.read(f"deployment/{ORDERS}", SPACE)
    await world.kubectl("rollout", "restart", f"deployment/{ORDERS}", f"--as={_USER}", space=SPACE)
    await world.kubectl("rollout", "status", f"deployment/{ORDERS}", space=SPACE)
    after = await world.read(f"deployment/{ORDERS}", SPACE)
    expect("the Deployment was restarted", after["metadata"]["generation"], before["metadata"]["generation"] + 1)
    await world.kubectl("delete", f"rolebinding/{_USER}", space=SPACE)  # objects of others keep a namespace
    lines = [f"{_USER} may edit all objects of the namespace; the API server answers:", f"  {refusal}"]
    state = await world.reaches(State.READY, store=FIRST, orders=SECOND, shop=SECOND)
    return [*lines, f"kubectl rollout restart, as {_USER}: done", *state]


REPAIR_PATH: Final = (
    Step("repair", "Delete a Service and edit a ConfigMap of a module: drift is repaired", repair),
    Step("refuse", "Edit a module that an admission policy protects: the API server refuses it", refuse),
)
