"""Settings from flags, environment and file, and rejected input."""

from pathlib import Path
from typing import Annotated, Literal

import click
import msgspec
import pytest
from click.testing import CliRunner

from governor.errors import GovernorError, Kind
from governor.process.address import Address
from governor.process.options import options
from governor.process.settings import load
from governor.values.secret import Secret


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    weight: int = 1


class Example(msgspec.Struct, frozen=True):
    listen: Annotated[Address, msgspec.Meta(description="Listen address.")] = Address("127.0.0.1", 8080)
    log_level: Literal["debug", "info"] = "info"
    grace_s: Annotated[float, msgspec.Meta(description="Time to stop.", gt=0)] = 10.0
    verbose: bool = False
    retries: int = 3
    data: Path | None = None
    token: Annotated[Secret | None, msgspec.Meta(description="Token of the clients.")] = None
    peers: tuple[Peer, ...] = ()


class Strict(msgspec.Struct, frozen=True):
    url: str
    token: Secret
    peers: tuple[Peer, ...]


def problems(**sources: object) -> list[str]:
    with pytest.raises(GovernorError) as caught:
        load(Example, "example", **({"environ": {}} | sources))  # type: ignore[arg-type]
    assert caught.value.kind is Kind.INVALID
    return [str(detail) for detail in caught.value.details] or [caught.value.message]


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_without_any_source_the_defaults_apply() -> None:
    assert load(Example, "example", environ={}) == Example()


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    config = written(tmp_path / "c.yaml", "retries: 7\ngrace-s: 1.5\nlog-level: debug\n")
    environ = {"GOVERNOR_EXAMPLE_RETRIES": "8", "GOVERNOR_EXAMPLE_GRACE_S": "2.5"}
    loaded = load(Example, "example", flags={"retries": "9", "grace-s": None}, environ=environ, config=config)
    assert (loaded.retries, loaded.grace_s, loaded.log_level) == (9, 2.5, "debug")


def test_the_config_flag_overrides_the_config_variable(tmp_path: Path) -> None:
    first = written(tmp_path / "first.yaml", "retries: 1\n")
    second = written(tmp_path / "second.yaml", "retries: 2\n")
    environ = {"GOVERNOR_EXAMPLE_CONFIG": str(first)}
    assert load(Example, "example", environ=environ).retries == 1
    assert load(Example, "example", environ=environ, config=second).retries == 2


def test_texts_are_converted_to_the_types_of_their_fields() -> None:
    environ = {
        "GOVERNOR_EXAMPLE_LISTEN": "[::1]:9",
        "GOVERNOR_EXAMPLE_VERBOSE": "true",
        "GOVERNOR_EXAMPLE_DATA": "/var/lib/example",
    }
    loaded = load(Example, "example", environ=environ)
    assert (loaded.listen, loaded.verbose, loaded.data) == (Address("::1", 9), True, Path("/var/lib/example"))


def test_lists_and_structs_come_from_the_file(tmp_path: Path) -> None:
    config = written(tmp_path / "c.yaml", "peers: [{name: a}, {name: b, weight: 2}]\n")
    assert load(Example, "example", environ={}, config=config).peers == (Peer("a"), Peer("b", 2))


def test_an_unknown_key_of_the_file_is_rejected_with_its_line_and_a_hint(tmp_path: Path) -> None:
    config = written(tmp_path / "c.yaml", "retries: 1\nlisen: 127.0.0.1:1\n")
    assert problems(config=config) == [f"{config}:2: unknown setting 'lisen', did you mean 'listen'?"]


def test_an_unknown_variable_of_the_program_is_rejected_with_a_hint() -> None:
    found = problems(environ={"GOVERNOR_EXAMPLE_LISEN": "127.0.0.1:1"})
    reason = "unknown setting 'GOVERNOR_EXAMPLE_LISEN', did you mean 'GOVERNOR_EXAMPLE_LISTEN'?"
    assert found == [f"environment GOVERNOR_EXAMPLE_LISEN: {reason}"]


def test_a_name_without_a_close_match_lists_all_names() -> None:
    (found,) = problems(environ={"GOVERNOR_EXAMPLE_XYZZY123": ""})
    assert "GOVERNOR_EXAMPLE_GRACE_S, GOVERNOR_EXAMPLE_LISTEN" in found


@pytest.mark.parametrize(
    "name", ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTPS", "PORT", "PORT_443_TCP", "PORT_443_TCP_ADDR"]
)
def test_kubernetes_service_variables_are_ignored(name: str) -> None:
    environ = {f"GOVERNOR_EXAMPLE_{name}": "tcp://10.0.0.1:443", "GOVERNOR_OTHER_THING": "1", "PATH": "/bin"}
    assert load(Example, "example", environ=environ) == Example()


def test_an_invalid_value_names_its_source(tmp_path: Path) -> None:
    config = written(tmp_path / "c.yaml", "\nverbose: 'yes'\n")
    found = problems(
        flags={"retries": "many"},
        environ={"GOVERNOR_EXAMPLE_GRACE_S": "-1", "GOVERNOR_EXAMPLE_LISTEN": "x"},
        config=config,
    )
    assert [each.partition(": ")[0] for each in found] == [
        "environment GOVERNOR_EXAMPLE_LISTEN",
        "environment GOVERNOR_EXAMPLE_GRACE_S",
        f"{config}:2",
        "flag --retries",
    ]
    assert found[3] == "flag --retries: retries: must be an integer"


def test_an_invalid_value_in_a_list_names_its_path(tmp_path: Path) -> None:
    config = written(tmp_path / "c.yaml", "peers:\n  - {name: a, wieght: 2}\n")
    (found,) = problems(config=config)
    assert "peers[0].wieght: unknown field" in found


@pytest.mark.parametrize(
    ("text", "reason"),
    [("- a\n", "one mapping"), ("a: 1\n---\nb: 2\n", "one mapping"), ("a: [", "not YAML"), ("text", "one mapping")],
)
def test_a_file_that_is_not_one_mapping_is_rejected(tmp_path: Path, text: str, reason: str) -> None:
    config = written(tmp_path / "c.yaml", text)
    (found,) = problems(config=config)
    assert found.startswith(f"{config}:")
    assert reason in found


def test_an_empty_file_sets_nothing_and_a_missing_file_is_an_error(tmp_path: Path) -> None:
    assert load(Example, "example", environ={}, config=written(tmp_path / "c.yaml", "# nothing\n")) == Example()
    assert "No such file" in problems(config=tmp_path / "absent.yaml")[0]


def test_a_missing_required_setting_is_named_with_all_its_sources() -> None:
    with pytest.raises(GovernorError) as caught:
        load(Strict, "strict", environ={})
    assert [str(each) for each in caught.value.details] == [
        "setting 'url' is required: set --url, GOVERNOR_STRICT_URL or 'url' in the file",
        "setting 'token-file' is required: set --token-file, GOVERNOR_STRICT_TOKEN_FILE or 'token-file' in the file",
        "setting 'peers' is required: set 'peers' in the file",
    ]


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
def test_a_secret_is_read_from_the_named_file(tmp_path: Path, source: str) -> None:
    token = str(written(tmp_path / "token", "hunter2\n"))
    config = written(tmp_path / "c.yaml", f"token-file: {token}\n")
    loaded = load(
        Example,
        "example",
        flags={"token-file": token} if source == "flag" else {},
        environ={"GOVERNOR_EXAMPLE_TOKEN_FILE": token} if source == "variable" else {},
        config=config if source == "file" else None,
    )
    assert loaded.token == Secret("hunter2")
    assert "hunter2" not in repr(loaded)


def test_a_secret_may_be_in_the_environment() -> None:
    assert load(Example, "example", environ={"GOVERNOR_EXAMPLE_TOKEN": "hunter2"}).token == Secret("hunter2")


def test_a_secret_set_twice_in_the_environment_is_rejected_without_showing_it() -> None:
    environ = {"GOVERNOR_EXAMPLE_TOKEN": "hunter2", "GOVERNOR_EXAMPLE_TOKEN_FILE": "/t"}
    (found,) = problems(environ=environ)
    assert "unset one of the two" in found
    assert "hunter2" not in found


def test_a_secret_in_the_settings_file_is_rejected_without_showing_it(tmp_path: Path) -> None:
    (found,) = problems(config=written(tmp_path / "c.yaml", "token: hunter2\n"))
    assert "did you mean 'token-file'?" in found
    assert "hunter2" not in found


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), (b"\n", "is empty"), (b"\xff", "not UTF-8")])
def test_an_unreadable_or_empty_secret_file_is_rejected(tmp_path: Path, content: bytes | None, reason: str) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    (found,) = problems(flags={"token-file": str(token)})
    assert found.startswith("flag --token-file: ")
    assert reason in found


def command(seen: list[object]) -> click.Command:
    @click.command()
    @click.argument("word")
    @options(Example, "example")
    def run(settings: Example, word: str) -> None:
        seen.extend([settings, word])

    return run


def test_a_command_gets_settings_from_flags_and_its_own_arguments() -> None:
    seen: list[object] = []
    result = CliRunner().invoke(
        command(seen), ["--listen", "127.0.0.1:1", "--no-verbose", "--log-level", "debug", "hello"], env={"PATH": ""}
    )
    assert result.exit_code == 0, result.output
    assert seen == [Example(listen=Address("127.0.0.1", 1), log_level="debug"), "hello"]


def test_a_missing_flag_does_not_override_the_environment() -> None:
    seen: list[object] = []
    result = CliRunner().invoke(command(seen), ["hello"], env={"GOVERNOR_EXAMPLE_VERBOSE": "1"})
    assert result.exit_code == 0, result.output
    assert seen[0] == Example(verbose=True)


def test_help_shows_each_flag_with_its_text_default_and_variable() -> None:
    text = " ".join(CliRunner().invoke(command([]), ["--help"]).output.split())
    assert "--listen HOST:PORT Listen address. [env: GOVERNOR_EXAMPLE_LISTEN; default: 127.0.0.1:8080]" in text
    assert "--token-file FILE Token of the clients. [env: GOVERNOR_EXAMPLE_TOKEN_FILE]" in text
    assert "--verbose / --no-verbose" in text
    assert "--log-level [debug|info]" in text
    assert "--config FILE" in text
    assert "--token " not in text
    assert "--peers" not in text
