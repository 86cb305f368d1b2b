"""Bad input on the command line: the error names file, line, path and reason, and nothing changes."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest
import pytest_asyncio

from demo import documents
from demo.programs import GovernorServer
from governor.cli.main import run
from governor.client import Client
from governor.wire.rest import ChangeRequest
from testbed.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Case(msgspec.Struct, frozen=True):
    """One bad file: its text, and what the error must contain besides the file name."""

    text: str
    line: int
    says: tuple[str, ...]
    exit_code: int = 3


def profile(body: str, name: str = "bad") -> str:
    head = f"""\
    apiVersion: runtime-governor.dev/v1alpha1
    kind: Profile
    metadata: {{name: {name}}}
    spec:
    """
    return dedent(head) + body


COMPONENT = """\
  selector: {}
  resources:
  - apiVersion: dapr.io/v1alpha1
    kind: Component
    metadata: {name: statestore}
    spec:
      type: state.redis
      version: v1
"""

ALIAS_BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(8)
)

CASES = {
    "not-yaml": Case(profile("  selector: {]\n"), 5, ("YAML",)),
    "unknown-document-kind": Case(
        profile(COMPONENT).replace("kind: Profile", "kind: Profil"), 2, ("kind", "Profil", "did you mean Profile?")
    ),
    "unknown-resource-kind": Case(
        profile(COMPONENT.replace("Component", "Komponent")), 8, ("spec.resources[0].kind", "Komponent", "Component")
    ),
    "wrong-type": Case(profile("  priority: high\n" + COMPONENT), 5, ("spec.priority", "int", "str")),
    "wrong-type-in-resource": Case(
        profile(COMPONENT + "      metadata: {redisHost: x}\n"),
        13,
        ("spec.resources[0].spec.metadata", "must be a list"),
    ),
    "unknown-field": Case(
        profile(COMPONENT + "      ignoreError: true\n"), 13, ("spec.resources[0].spec", "ignoreError", "ignoreErrors")
    ),
    "duplicate-key": Case(profile("  selector: {}\n  selector: {}\n"), 6, ("selector", "line 5")),
    "duplicate-document": Case(profile(COMPONENT) + "---\n" + profile(COMPONENT), 14, ("Profile/bad", ".yaml:1;")),
    "duplicate-resource": Case(
        profile(COMPONENT + COMPONENT.split("resources:\n")[1]), 13, ("spec.resources[1]", "statestore")
    ),
    "unknown-variable": Case(
        profile(COMPONENT + "      metadata: [{name: keyPrefix, value: '${runtime.name}'}]\n"),
        13,
        ("spec.resources[0].spec.metadata[0].value", "${runtime.name}", "${runtime.id}"),
    ),
    "missing-label": Case(
        profile(COMPONENT + "      metadata: [{name: keyPrefix, value: '${runtime.labels.zone}'}]\n"),
        13,
        ("spec.resources[0].spec.metadata[keyPrefix].value", "zone", "r1"),
    ),
    "alias-bomb": Case(ALIAS_BOMB, 0, ("alias",)),
    "two-megabytes": Case(profile(f"  selector: {{}}\n# {'x' * 2_000_000}\n"), 0, ("1048576",)),
    "two-megabytes-of-data": Case(
        profile(COMPONENT + f"      metadata: [{{name: keyPrefix, value: '{'x' * 2_000_000}'}}]\n"), 0, ("1048576",)
    ),
    "equal-priority-conflict": Case(
        profile("  priority: 10\n" + COMPONENT.replace("state.redis", "state.in-memory"), name="rival"),
        12,
        ("spec.resources[0].spec.type", "orders", "rival", "priority 10"),
        exit_code=6,
    ),
    "unknown-runtime": Case(
        profile(COMPONENT.replace("selector: {}", "selector: {runtime: nowhere}")),
        5,
        ("spec.selector.runtime", "nowhere"),
    ),
    "incomplete-resource": Case(
        profile(
            "  selector: {}\n"
            + COMPONENT.split("selector: {}\n")[1]
            .replace("name: statestore", "name: other")
            .replace("      type: state.redis\n", "")
        ),
        10,
        ("Component/default/other", "spec.type", "is missing"),
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GovernorServer]:
    """Start a server with one runtime and one profile."""
    async with GovernorServer(tmp_path_factory.mktemp("server")) as server, server.client() as api:
        orders = documents.orders()
        orders["spec"] |= {"selector": {}, "priority": 10}
        for component in orders["spec"]["resources"]:
            component["spec"]["metadata"] = [{"name": "enableTLS", "value": "false"}]
        await api.change(ChangeRequest((documents.runtime("r1"), orders)))

        async def is_issued() -> bool:
            return [view.sequence for view in await api.runtimes()] == [1]

        await until(is_issued)
        yield server


async def apply(server: GovernorServer, path: Path) -> int:
    """Run ``governor apply`` within this process, and return its exit code."""
    access = (f"--server={server.url}", f"--token-file={server.admin_token_file}")
    return await asyncio.to_thread(run, [*access, "apply", "-f", str(path)])


async def apply_as_program(server: GovernorServer, path: Path) -> tuple[int, str]:
    """Run ``governor apply`` as its own process; return the exit code and the error output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "governor.cli.main"),
        *(f"--server={server.url}", f"--token-file={server.admin_token_file}", "apply", "-f", str(path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await process.communicate()
    return process.returncode or 0, error.decode()


async def state(api: Client) -> tuple[object, ...]:
    """Return everything that a change could affect."""
    return await api.documents(), await api.revisions(), [(view.sequence, view.digest) for view in await api.runtimes()]


@pytest.mark.parametrize("name", CASES)
async def test_bad_input_is_rejected_with_its_location_and_changes_nothing(
    server: GovernorServer, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    file = tmp_path / f"{name}.yaml"
    file.write_text(case.text)
    async with server.client() as api:
        before = await state(api)
        code = await apply(server, file)
        after = await state(api)

    error = capsys.readouterr().err
    location = f"{file}:{case.line}" if case.line else str(file)
    assert (code, location in error) == (case.exit_code, True), error
    assert [word for word in case.says if word not in error] == [], error
    assert len(error) < 3000
    assert before == after


async def test_one_bad_file_rejects_the_whole_change(server: GovernorServer, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(profile(COMPONENT, name="good"))
    (tmp_path / "bad.yaml").write_text(CASES["unknown-field"].text)
    async with server.client() as api:
        before = await state(api)
        code, error = await apply_as_program(server, tmp_path)

        assert code == 3
        assert "bad.yaml:13" in error
        assert before == await state(api)


async def test_every_problem_of_a_change_is_reported_at_once(
    server: GovernorServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("unknown-field", "wrong-type", "wrong-type-in-resource"):
        (tmp_path / f"{name}.yaml").write_text(CASES[name].text.replace("name: bad", f"name: {name}"))
    await apply(server, tmp_path)
    error = capsys.readouterr().err

    assert [place for place in ("field.yaml:13", "wrong-type.yaml:5", "resource.yaml:13") if place not in error] == []
