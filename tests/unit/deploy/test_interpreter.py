"""The interpreter of an image: the modules that programs need, without traces of where it was compiled."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.image.interpreter import Interpreter, inspect, without_parents
from toolchain.errors import TestbedError

NAMES = st.text("abcdefgh0123456789.-_", min_size=1, max_size=12).filter(lambda name: name not in (".", ".."))


def test_a_virtual_environment_is_resolved_to_its_base_python() -> None:
    interpreter = inspect(Path(sys.executable))
    assert interpreter.prefix == Path(sys.base_prefix)
    assert interpreter.build == sys.version
    assert interpreter.name == f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert (interpreter.library / "os.py").exists()
    assert interpreter.executable.is_absolute()
    assert not interpreter.executable.is_symlink()


def test_the_library_is_complete_except_for_excluded_modules() -> None:
    modules = set(map(str, inspect(Path(sys.executable)).modules()))
    assert {"os.py", "asyncio/base_events.py", "encodings/utf_8.py", "LICENSE.txt"} <= modules
    unwanted = (
        "test/",
        "idlelib/",
        "tkinter/",
        "ensurepip/",
        "lib2to3/",
        "site-packages/",
        "dist-packages/",
        "config-",
    )
    assert [name for name in modules if name.startswith(unwanted) or "__pycache__" in name or "/tests/" in name] == []
    assert [name for name in modules if "/_tkinter." in name or "/_test" in name or "/readline." in name] == []
    assert "sitecustomize.py" not in modules, "it is the machine's, not Python's"


def answering(directory: Path, answer: str) -> Path:
    """Return a program that always prints the same text."""
    program = directory / "python3"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    return program


FACTS = (
    '{"executable": "/usr/bin/python3", "prefix": "/usr", "version": [%s], "build": "", "library": "%s", "source": ""}'
)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("hello", "is not a working Python"),
        (FACTS % ("3, 10, 1", "/usr/lib"), "is older than 3.11"),
        (FACTS % ("3, 11, 0", "/no/such/place"), "has no standard library in /no/such/place"),
    ],
)
def test_an_unsuitable_python_is_rejected(answer: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=message):
        inspect(answering(tmp_path, answer))


def test_a_missing_python_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="no-such-python"):
        inspect(tmp_path / "no-such-python")


@given(parts=st.lists(NAMES, min_size=2, max_size=5), before=st.binary(max_size=20), after=st.binary(max_size=20))
def test_parent_directories_are_blanked_and_offsets_kept(parts: list[str], before: bytes, after: bytes) -> None:
    place = "/" + "/".join(parts)
    content = before + place.encode() + b"\0" + after
    changed = without_parents(content, place)
    assert len(changed) == len(content)
    above = f"/{'/'.join(parts[:-1])}/".encode()
    assert above not in changed or set(above) == {ord("/")}
    assert f"/{parts[-1]}\0".encode() in changed, "a version at the end of a path may be shared with other texts"


def test_a_directory_below_the_root_is_kept() -> None:
    assert without_parents(b"/python/lib\0", "/python") == b"/python/lib\0"


def test_only_a_locally_compiled_python_is_changed() -> None:
    debian = Interpreter(Path("/usr/bin/python3.11"), Path("/usr"), Path("/usr/lib/python3.11"), "3.11.2", "", "")
    assert not debian.is_compiled_here
    assert replace(debian, prefix=Path("/opt/python")).is_compiled_here
