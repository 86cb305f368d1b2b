"""Files of policies: what is rejected, and what stays in force."""

import pytest

from governor.runtimeproxy.hooks.handlers import FailurePolicy, Mode
from governor.runtimeproxy.policies.reader import Policies, reload
from governor.wire.hooks.points import Hook
from tests.unit.runtimeproxy.policies.documents import HEAD, document, read

SHARES = "{container: {set: {cpuShares: 2}}}"


def texts(policies: Policies) -> list[str]:
    return [str(each) for each in policies.problems]


def names(policies: Policies) -> list[str]:
    return [each.name for each in policies.all]


def test_a_file_may_have_several_policies() -> None:
    found = read("---\n".join([document(SHARES, "one"), document(SHARES, "two")]), document(SHARES, "three"))
    assert (names(found), found.problems) == (["policy/one", "policy/two", "policy/three"], ())


def test_a_policy_has_the_hooks_of_what_it_changes() -> None:
    (only,) = read(document("{pod: {set: {cpuShares: 2}}, failurePolicy: Fail, mode: observe, order: 3}")).all
    assert only.policies == {Hook.PRE_RUN_POD_SANDBOX: FailurePolicy.FAIL}
    assert (only.mode, only.order) == (Mode.OBSERVE, 3)
    (other,) = read(document(SHARES)).all
    assert other.policies.keys() == {Hook.PRE_CREATE_CONTAINER, Hook.PRE_UPDATE_CONTAINER_RESOURCES}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "a.yaml"),
        ("[1]", "a.yaml"),
        (HEAD, "metadata: is missing"),
        (HEAD.replace("NodePolicy", "Policy"), "kind"),
        (document("{}"), "spec: has neither pod nor container"),
        (document("{container: {set: {cpuShare: 2}}}"), "spec.container.set.cpuShare: unknown field"),
        (document("{container: {set: {cpuShares: 1}}}"), "spec.container.set.cpuShares"),
        (document("{container: {set: {cpuShares: many}}}"), "spec.container.set.cpuShares"),
        (document("{container: {set: {oomScoreAdj: 1001}}}"), "spec.container.set.oomScoreAdj"),
        (document("{container: {set: {cpusetCpus: all}}}"), "spec.container.set.cpusetCpus"),
        (document("{container: {scale: {cpuShares: 0}}}"), "spec.container.scale.cpuShares"),
        (document("{container: {scale: {oomScoreAdj: 2}}}"), "spec.container.scale.oomScoreAdj: unknown field"),
        (document("{container: {set: {labels: {a: b}}}}"), "spec.container.set.labels: unknown field"),
        (document("{container: {clear: [everything]}}"), "'everything' cannot be cleared; choose one of: cpuPeriod"),
        (document("{container: {clear: [labels/a]}}"), "'labels/a' cannot be cleared"),
        (document("{pod: {clear: [environment/A]}}"), "'environment/A' cannot be cleared"),
        (document("{match: {qosClasses: [Gold]}, container: {}}"), "spec.match.qosClasses"),
        (document(SHARES, "UPPER"), "metadata.name"),
        (f"{document(SHARES)}---\n{document(SHARES)}", "'p' is also in a.yaml"),
    ],
)
def test_an_invalid_file_is_rejected_with_its_place(text: str, problem: str) -> None:
    found = read(text)
    assert found.all == ()
    assert problem in texts(found)[0]
    assert texts(found)[0].startswith("error: a.yaml")
    assert texts(found)[-1].endswith("its policies are not used")


def test_an_error_names_its_line() -> None:
    assert texts(read(f"{document(SHARES, 'one')}---\n{document('{container: {set: {x: 1}}}')}"))[0].startswith(
        "error: a.yaml:9: spec.container.set.x"
    )


def test_the_last_valid_version_of_a_file_stays_in_force_until_it_is_deleted() -> None:
    first = read(document(SHARES, "one"), document(SHARES, "two"))
    broken = read("{", document(SHARES, "other"), previous=first)
    assert names(broken) == ["policy/one", "policy/other"]
    assert texts(broken)[0].endswith("its last valid version stays in force")
    assert names(reload(broken, {}, has_unified=True)) == []


def test_a_file_is_replaced_as_a_whole() -> None:
    first = read(f"{document(SHARES, 'one')}---\n{document(SHARES, 'two')}")
    half = read(f"{document(SHARES, 'three')}---\n{document('{container: {set: {x: 1}}}', 'four')}", previous=first)
    assert names(half) == ["policy/one", "policy/two"]


def test_a_name_is_used_once_in_all_files() -> None:
    found = read(document(SHARES), document(SHARES))
    assert names(found) == ["policy/p"]
    assert "'p' is also in a.yaml" in texts(found)[0]


def test_files_of_cgroup_v2_are_rejected_on_a_node_with_cgroup_v1() -> None:
    text = document("{container: {set: {unified: {memory.high: '5'}}}}")
    assert read(text).problems == ()
    assert texts(read(text, has_unified=False)) == [
        (
            "error: a.yaml:3: spec.container.set.unified: needs cgroup v2, and this node has cgroup v1; "
            "its policies are not used"
        )
    ]


def test_unreadable_large_and_hidden_files() -> None:
    contents: dict[str, bytes | OSError] = {
        "a.yaml": PermissionError(13, "Permission denied"),
        "b.yaml": b"#" * 2**21,
        ".c.yaml": b"{",
    }
    found = reload(Policies(), contents, has_unified=True)
    assert [each.partition(";")[0] for each in texts(found)] == [
        "error: a.yaml: cannot be read: Permission denied",
        "error: b.yaml: is 2097152 bytes long",
    ]
