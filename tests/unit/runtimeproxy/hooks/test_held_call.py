"""The trail of a held call."""

import msgspec

from governor.runtimeproxy.cri import cri_pb2
from governor.runtimeproxy.hooks.calls import Call
from governor.runtimeproxy.hooks.changes import ConflictPolicy
from governor.runtimeproxy.hooks.held_call import Applied, Held
from governor.wire.hooks.hooks_pb2 import PodSandboxHookResponse
from tests.unit.runtimeproxy.hooks.strategies import add, answer, begun
from tests.unit.runtimeproxy.pods import PodRecords

CALL = Call.RUN_POD_SANDBOX


async def test_the_trail_of_a_call_is_bounded() -> None:
    held = Held(CALL)
    merged = begun(CALL, cri_pb2.RunPodSandboxRequest(), PodRecords())
    for plugin in ("first", "last"):
        response = PodSandboxHookResponse(annotations={f"k{number:03}" * 100: plugin * 1000 for number in range(500)})
        merged = add(merged, plugin, answer(response), ConflictPolicy.LAST_WINS)
    held.apply(Applied(merged.message.request, None, None, merged.changes, merged.conflicts, merged.unused))

    trail = held.trail()

    assert (len(trail.changes), trail.left_out) == (64, 436)
    assert len(trail.conflicts) == 65
    assert trail.conflicts[-1] == "and 436 more"
    assert len(msgspec.json.encode(trail)) < 100_000
