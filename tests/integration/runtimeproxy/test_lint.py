"""``governor runtime-proxy lint`` on files and sockets, without a proxy."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from testbed.commands import Outcome
from testbed.cri.fixtures import StartHookPlugin
from testbed.cri.peers import HookPlugin
from tests.integration.runtimeproxy.command_line import governor


async def lint(directory: Path, *words: str) -> Outcome:
    options = (f"--hook-server-dir={directory}", f"--policy-dir={directory / 'policies'}")
    return await governor("runtime-proxy", *options, "lint", *words)


async def reasons(directory: Path, *words: str) -> set[str]:
    """Return each problem as text: kind, file, key and reason."""
    outcome = await lint(directory, "-o", "json", *words)
    return {_text(each) for each in json.loads(outcome.out)["problems"]}


def _text(problem: Any) -> str:
    detail = problem["detail"]
    kind = "error" if problem["is_error"] else "warning"
    return f"{kind} {detail.get('file', '')} {detail.get('path', '')}: {detail['reason']}"


@pytest.fixture
async def plugin(start_hook_plugin: StartHookPlugin) -> HookPlugin:
    return await start_hook_plugin()


async def test_valid_files_have_no_problems_and_list_the_plugins_called(plugin: HookPlugin, tmp_path: Path) -> None:
    directory = tmp_path / "hookserver.d"
    selector = {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]}
    plugin.register(directory, "late", ["PreRunPodSandbox"], order=2, timeout="500ms", failure_policy="Fail")
    plugin.register(directory, "early", ["PreCreateContainer"], order=1, selector=selector)

    outcome = await lint(directory, "--strict")

    assert outcome.code == 0, outcome.out
    [run] = [line.split() for line in outcome.lines if line.startswith("PreRunPodSandbox")]
    assert run == ["PreRunPodSandbox", "RunPodSandbox", "1.", "late", "2", "0.5s", "Fail", "enforce", "all", "pods"]
    assert "app=web, tier Exists" in outcome.out
    assert outcome.lines[-1] == f"{directory}: no errors, no warnings"


async def test_every_error_is_named_with_file_and_key(plugin: HookPlugin, tmp_path: Path) -> None:
    plugin.register(tmp_path, "hook", ["PreEverything"])
    plugin.register(tmp_path, "policy", ["PreRunPodSandbox"], failure_policy="Perhaps", timeout="soon")
    (tmp_path / "broken.json").write_text("{")

    outcome = await lint(tmp_path)
    found = await reasons(tmp_path)

    assert outcome.code == 1
    assert {each.partition(": ")[0] for each in found if each.startswith("error")} == {
        "error hook.json runtime-hooks",
        "error policy.json failure-policy",
        "error policy.json timeout",
        "error broken.json ",
    }
    assert "error: policy.json: timeout: 'soon' is not a duration" in outcome.out


async def test_warnings_fail_only_with_strict(plugin: HookPlugin, tmp_path: Path) -> None:
    plugin.register(tmp_path, "odd", ["PreRemoveRunPodSandbox"], colour="green")

    outcome, strict, found = await lint(tmp_path), await lint(tmp_path, "--strict"), await reasons(tmp_path)

    assert (outcome.code, strict.code) == (0, 1)
    assert "warning odd.json colour: is an unknown key and has no effect" in found
    assert "warning odd.json runtime-hooks: PreRemoveRunPodSandbox is never called" in found


async def test_unresponsive_sockets_are_reported_by_cause(plugin: HookPlugin, tmp_path: Path) -> None:
    files = tmp_path / "d"
    with socket.socket(socket.AF_UNIX) as mute, socket.socket(socket.AF_UNIX) as gone:
        mute.bind(str(tmp_path / "mute"))
        mute.listen()
        gone.bind(str(tmp_path / "gone"))
        for order, name in enumerate(("mute", "gone", "missing", "plain")):
            path = plugin.register(files, name, ["PreRunPodSandbox"], order=order)
            path.write_text(path.read_text().replace(str(plugin.socket), str(tmp_path / name)))
        (tmp_path / "plain").write_text("")

        found = await reasons(files)

    assert found == {
        f"warning mute.json remote-endpoint: {tmp_path}/mute does not respond within 2 s",
        f"warning gone.json remote-endpoint: {tmp_path}/gone cannot be reached: Connection refused",
        f"warning missing.json remote-endpoint: {tmp_path}/missing does not exist; the plugin is not running",
        f"warning plain.json remote-endpoint: {tmp_path}/plain cannot be reached: Connection refused",
    }


async def test_paths_that_others_can_write_are_reported(plugin: HookPlugin, tmp_path: Path) -> None:
    file = plugin.register(tmp_path / "d", "p", ["PreRunPodSandbox"])
    for path in (file.parent, file, plugin.socket):
        path.chmod(0o777)

    found = await reasons(file.parent)

    reason = "is world-writable (mode 0777)"
    assert found == {
        f"warning {file.parent} : {reason}",
        f"warning p.json : {reason}",
        f"warning p.json remote-endpoint: {plugin.socket} {reason}",
    }


async def test_plugins_with_shared_orders_or_excessive_timeouts_are_reported(
    start_hook_plugin: StartHookPlugin, tmp_path: Path
) -> None:
    one, two, three = [await start_hook_plugin() for _ in range(3)]
    hooks = ["PreRunPodSandbox", "PreCreateContainer"]
    one.register(tmp_path, "one", hooks, selector={"matchLabels": {"app": "web"}}, timeout=100)
    two.register(tmp_path, "two", ["PreCreateContainer"], timeout=20)
    three.register(tmp_path, "three", hooks, selector={"matchLabels": {"app": "db"}}, order=0)

    found = await reasons(tmp_path)

    assert found == {
        (
            "warning two.json order: equals that of one.json, three.json, so they are called in the order "
            "of their names at PreCreateContainer"
        ),
        (
            "warning one.json, three.json, two.json timeout: add up to 122 s for PreCreateContainer; of kubelet's "
            "120 s only 115 s are for plugins, so each timeout is shortened"
        ),
    }
    assert len(await reasons(tmp_path, "--runtime-request-timeout", "240")) == 1


async def test_a_missing_directory_is_a_warning(tmp_path: Path) -> None:
    outcome = await lint(tmp_path / "nowhere")

    assert outcome.code == 0
    assert "is not a directory, so there are no plugins" in outcome.out


async def test_a_proxy_flag_after_the_command_is_rejected_with_its_place(tmp_path: Path) -> None:
    outcome = await lint(tmp_path, f"--hook-server-dir={tmp_path}")
    unknown = await lint(tmp_path, "--hook-servers")

    assert (outcome.code, unknown.code) == (2, 2)
    message = "--hook-server-dir must precede the command: governor runtime-proxy --hook-server-dir ... lint"
    assert message in outcome.err
    assert "No such option '--hook-servers'" in unknown.err


async def test_null_keys_are_not_reported(plugin: HookPlugin, tmp_path: Path) -> None:
    nulls = {"order": None, "timeout": None, "selector": None, "failure_policy": None}
    plugin.register(tmp_path, "p", ["PreRunPodSandbox"], **nulls)

    outcome = await lint(tmp_path, "--strict")

    assert outcome.code == 0, outcome.out
    assert outcome.lines[1].split() == [
        "PreRunPodSandbox",
        "RunPodSandbox",
        "1.",
        "p",
        "0",
        "2s",
        "Ignore",
        "enforce",
        "all",
        "pods",
    ]


async def test_a_directory_given_as_argument_must_exist(tmp_path: Path) -> None:
    outcome = await lint(tmp_path, str(tmp_path / "hooksrever.d"))

    assert outcome.code == 2
    assert "hooksrever.d' does not exist" in outcome.err


async def test_policies_are_checked_and_listed_among_the_plugins(plugin: HookPlugin, tmp_path: Path) -> None:
    plugin.register(tmp_path, "p", ["PreCreateContainer"])
    (tmp_path / "policies").mkdir()
    head = "apiVersion: runtime-governor.dev/v1alpha1\nkind: NodePolicy\n"
    spec = "{mode: observe, match: {namespaces: [shop], qosClasses: [BestEffort]}, container: {set: {cpuShares: 2}}}"
    (tmp_path / "policies" / "batch.yaml").write_text(f"{head}metadata: {{name: batch}}\nspec: {spec}\n")
    (tmp_path / "policies" / "wrong.yaml").write_text(f"{head}metadata: {{name: w}}\nspec: {{pod: {{sets: 1}}}}\n")

    outcome = await lint(tmp_path)

    assert outcome.code == 1
    assert "error: wrong.yaml:4: spec.pod.sets: unknown field; did you mean set?" in outcome.out
    rows = [line for line in outcome.lines if line.startswith("PreCreateContainer")]
    assert ["policy/batch" in each for each in rows] == [False, True]
    assert rows[1].split()[-8:] == ["observe", "namespace", "in", "(shop),", "QoS", "class", "in", "(BestEffort)"]
    assert "batch.yaml: order: equals that of p.json" in outcome.out
