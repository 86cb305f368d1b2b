"""Children that are spoken to through a stream."""

import os
import sys
from pathlib import Path

import pytest

from governor.errors import GovernorError
from governor.process.child import piped

ECHO = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)\nprint('done', file=sys.stderr)"


async def test_a_child_answers_and_ends_with_its_input() -> None:
    child = await piped.start([sys.executable, "-c", ECHO])
    for text in (b"first\n", b"second\n"):
        child.writer.write(text)
        assert await child.reader.readline() == text.upper()
    child.writer.write_eof()
    assert await child.reader.read() == b""
    ended = await child.process.wait()
    assert (ended.code, ended.tail) == (0, ("done",))
    await child.stop(0)


async def test_a_child_that_is_stopped_leaves_no_process() -> None:
    child = await piped.start([sys.executable, "-c", ECHO])
    ended = await child.stop(0)
    assert ended.signal in ("SIGTERM", "SIGKILL")
    assert not Path(f"/proc/{child.process.pid}").exists()


async def test_a_child_inherits_the_descriptors_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    given = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        script = f"import os; print(os.read({given}, 100).decode())"
        child = await piped.start([sys.executable, "-c", script], descriptors=[given])
        assert await child.reader.read() == b"content\n"
    finally:
        os.close(given)
    await child.stop(0)


async def test_a_program_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    with pytest.raises(GovernorError, match=r"cannot start .*absent"):
        await piped.start([str(tmp_path / "absent")])
