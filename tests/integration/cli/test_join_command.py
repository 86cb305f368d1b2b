"""``runtime join-command``: what it prints, creates and refuses; a test of the real cluster runs its output."""

import shlex
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import governor
from governor.domain.documents import API_VERSION
from governor.errors import Kind
from governor.process.exit_codes import EXIT_CODE, SUCCESS, USAGE
from governor.values.secret import Secret
from governor.wire.credentials import read_join_token
from testbed.commands import Outcome
from tests.integration.cli.bed import CommandLine
from tests.integration.server.bed import ServerBed, running
from toolchain.repository import REPOSITORY

pytestmark = pytest.mark.asyncio(loop_scope="module")

URL = "https://governor.example.com:8420"
CHART = REPOSITORY / "charts" / "governor-agent"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerBed]:
    async with running(tmp_path_factory.mktemp("server") / "data", public_url=URL) as bed:
        await bed.apply(runtime("cluster-1", "kubernetes", "orders", "payments"), runtime("shop-1", "local", "default"))
        yield bed


@pytest.fixture
def command_line(server: ServerBed, tmp_path: Path) -> CommandLine:
    return CommandLine(server, tmp_path)


def runtime(name: str, platform: str, *namespaces: str) -> dict[str, Any]:
    spec = {"platform": platform, "namespaces": list(namespaces)}
    return {"apiVersion": API_VERSION, "kind": "Runtime", "metadata": {"name": name}, "spec": spec}


async def join_command(command_line: CommandLine, *words: str, name: str = "cluster-1", **environment: str) -> Outcome:
    return await command_line.run("runtime", "join-command", name, "--platform=kubernetes", *words, **environment)


async def unused_tokens(server: ServerBed) -> int:
    async with server.client() as admin:
        return len([each for each in await admin.tokens() if each.runtime and not each.revoked])


async def test_the_token_is_in_a_private_file_and_nowhere_else(command_line: CommandLine) -> None:
    done = await join_command(command_line)
    file = command_line.directory / "cluster-1.join-token"
    token = file.read_text().strip()
    assert done.code == SUCCESS, done.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    read = read_join_token(Secret(token))
    assert (read.server, read.runtime) == (URL, "cluster-1")
    assert token not in done.out + done.err
    assert read.secret not in done.out + done.err

    install, remove = done.out.split("&&")
    assert shlex.split(remove) == ["rm", str(file)]
    assert shlex.split(install.replace("\\\n", "")) == [
        *("helm", "install", "governor-agent-cluster-1", str(CHART)),
        *("--namespace=runtime-governor", "--create-namespace", "--wait"),
        f"--set-string=image.repository=local.test/governor,image.tag={governor.__version__}",
        "--set-string=namespaces={orders,payments}",
        f"--set-file=joinToken.value={file}",
    ]
    assert "the namespaces orders, payments must exist" in done.err


async def test_an_inline_token_is_the_input_of_the_command(command_line: CommandLine) -> None:
    options = (
        "--image=registry.example.com:5000/governor",
        "--chart=oci://registry.example.com/agent",
        "--release=one",
    )
    done = await join_command(command_line, "--inline", *options, GOVERNOR_IMAGE="ignored/image")
    assert done.code == SUCCESS, done.err
    install, token, end = done.out.rsplit("\n", 3)[:3]
    assert (install.rpartition(" ")[2], end) == ("<<'END'", "END")
    assert read_join_token(Secret(token)).runtime == "cluster-1"
    assert "helm install one oci://registry.example.com/agent" in install
    assert f"image.repository=registry.example.com:5000/governor,image.tag={governor.__version__}" in install
    assert "joinToken.value=/dev/stdin" in install
    assert list(command_line.directory.iterdir()) == []
    assert "the nodes need the image" not in done.err
    assert "pass --chart" not in done.err
    assert "pass --chart" in (await join_command(command_line, "--inline")).err


async def test_a_token_that_was_not_used_is_not_overwritten(command_line: CommandLine, server: ServerBed) -> None:
    file = command_line.directory / "cluster-1.join-token"
    file.write_text("mine")
    before = await unused_tokens(server)
    done = await join_command(command_line)
    assert (done.code, file.read_text()) == (EXIT_CODE[Kind.EXISTS], "mine")
    assert await unused_tokens(server) == before


@pytest.mark.parametrize(
    ("words", "name", "code", "message"),
    [
        ((), "shop-1", EXIT_CODE[Kind.PRECONDITION], "runtime 'shop-1' has platform local"),
        ((), "nowhere", EXIT_CODE[Kind.NOT_FOUND], "nowhere"),
        ((f"--release={'x' * 54}",), "cluster-1", EXIT_CODE[Kind.PRECONDITION], "pass --release"),
        (("--platform=local",), "shop-1", USAGE, "'local' is not 'kubernetes'"),
    ],
)
async def test_what_cannot_work_creates_no_token(
    command_line: CommandLine, server: ServerBed, words: tuple[str, ...], name: str, code: int, message: str
) -> None:
    before = await unused_tokens(server)
    done = await join_command(command_line, *words, name=name)
    assert done.code == code
    assert message in done.err
    assert await unused_tokens(server) == before


async def test_a_server_that_only_this_machine_reaches_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as server:
        await server.apply(runtime("cluster-1", "kubernetes", "orders"))
        done = await join_command(CommandLine(server, tmp_path))
        assert done.code == EXIT_CODE[Kind.PRECONDITION]
        assert "which no pod can reach" in done.err
        assert (await unused_tokens(server), list(tmp_path.glob("*.join-token"))) == (0, [])
