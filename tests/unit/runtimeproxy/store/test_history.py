"""The history of plugins' changes: by pod, bounded, and evicted with the pod."""

import datetime

from governor.runtimeproxy.hooks.changes import Change
from governor.runtimeproxy.ops.control import PluginCall, Subject, Trail
from governor.runtimeproxy.store.history import History

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
CHANGE = Change("p", ("annotations", "a"), None, "1").masked(10)


def trail(second: int, call: str = "RunPodSandbox", container: str = "", *, changed: bool = True) -> Trail:
    time = START + datetime.timedelta(seconds=second)
    return Trail(time=time, call=call, container=container, changes=(CHANGE,) if changed else ())


def pod(name: str, uid: str | None = None) -> Subject:
    return Subject("shop", name, f"uid-of-{name}" if uid is None else uid)


def names(history: History) -> set[str]:
    return {each.name for each in history}


def test_failures_and_rejections_are_kept() -> None:
    history = History(set)
    failed = Trail(START, "RunPodSandbox", asked=(PluginCall("p", "PreRunPodSandbox", 0.1, "hangs"),))
    refused = Trail(START, "RunPodSandbox", refusal="no")
    history.add(pod("web"), failed)
    history.add(pod("web"), refused)
    assert history.of("shop", "web") == (failed, refused)


def test_a_frequent_call_does_not_evict_others() -> None:
    history = History(set)
    created = trail(0, "CreateContainer", "main")
    history.add(pod("web"), created)
    for second in range(1, 100):
        history.add(pod("web"), trail(second, "UpdateContainerResources", "main"))
    found = history.of("shop", "web")
    assert found[0] == created
    assert [each.time.second + 60 * each.time.minute for each in found[1:]] == [96, 97, 98, 99]


def test_containers_of_a_pod_are_bounded() -> None:
    history = History(set)
    for number in range(100):
        history.add(pod("web"), trail(number, "CreateContainer", f"c{number}"))
    assert [each.container for each in history.of("shop", "web")] == [f"c{number}" for number in range(68, 100)]


def test_recorded_pods_are_kept_and_of_the_others_only_the_latest() -> None:
    known = {f"uid-of-kept{number}" for number in range(100)}
    history = History(lambda: known)
    for number in range(200):
        history.add(pod(f"kept{number % 100}"), trail(number))
        history.add(pod(f"gone{number}"), trail(number))
    assert names(history) == {f"kept{number}" for number in range(100)} | {
        f"gone{number}" for number in range(136, 200)
    }


def test_the_history_is_evicted_with_the_record() -> None:
    known = {f"uid-of-pod{number}" for number in range(500)}
    history = History(lambda: known)
    for number in range(500):
        history.add(pod(f"pod{number}"), trail(number))
    known.clear()
    history.add(pod("new"), trail(1000))
    assert len(names(history)) == 64
    assert "new" in names(history)


def test_pods_of_one_name_share_a_history() -> None:
    history = History(set)
    history.add(pod("web", "first"), trail(1))
    history.add(pod("web", "second"), trail(0))
    history.add(Subject("test", "web", "third"), trail(2))
    assert [each.time for each in history.of("shop", "web")] == [trail(0).time, trail(1).time]


def test_a_call_without_a_pod_is_not_kept() -> None:
    history = History(set)
    history.add(Subject(container_id="c1"), trail(0))
    assert list(history) == []


class Ended:
    """A call that has ended."""

    def __init__(self, subject: Subject, second: int) -> None:
        self.subject = subject
        self._second = second

    def trail(self) -> Trail:
        return trail(self._second)


async def test_calls_that_have_ended_are_added_before_the_history_is_read() -> None:
    history = History(set)
    history.ended(Ended(pod("web"), 0))
    assert history.of("shop", "web") == (trail(0),)
    history.ended(Ended(pod("api"), 1))
    assert names(history) == {"web", "api"}
