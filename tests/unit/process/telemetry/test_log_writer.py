"""The thread that writes log lines: stalled and failing files, dropped lines, the end of a process."""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from governor.process.telemetry.log_writer import Dropped, Priority, ThreadWriter

LONG_S = 60.0
"""Longer than any test: what waits this long is a failure."""
KIB = 1024 * "x"


def notice(dropped: Dropped) -> str:
    return "dropped " + " ".join(f"{each.name}={dropped.get(each, 0)}" for each in Priority)


def end(writer: ThreadWriter) -> None:
    """Write everything and stop the thread."""
    while not (writer._is_written or writer._closed):
        writer.flush(LONG_S)  # Returns after a failed write, too.
    writer.close()


class Pipe:
    """A pipe of one page, with a writer whose lines are read only by ``read_lines``."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        self.reader = os.fdopen(reading, "rb")
        self.stream = os.fdopen(writing, "w")
        self._writers: list[ThreadWriter] = []

    def writer(self, notice: Callable[[Dropped], str] = notice) -> ThreadWriter:
        self._writers.append(ThreadWriter(self.stream, notice))
        return self._writers[-1]

    def close(self) -> None:
        """Let the writers write the rest elsewhere, and stop them."""
        with Path(os.devnull).open("w") as sink:
            os.dup2(sink.fileno(), self.stream.fileno())
        self.reader.close()
        for each in self._writers:
            end(each)
        self.stream.close()

    def read_lines(self, until: str) -> list[str]:
        """Read up to and including a line."""
        lines = list(iter(self._line, until))
        return [*lines, until]

    def _line(self) -> str:
        line = self.reader.readline()
        assert line, "the pipe was closed"
        return line.decode().removesuffix("\n")


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def flood(writer: ThreadWriter, priority: Priority, kibibytes: int) -> list[str]:
    """Write lines of one KiB and return them."""
    lines = [f"{priority.name} {number} {KIB}"[:1023] for number in range(kibibytes)]
    for line in lines:
        writer.put(line, priority)
    return lines


def test_lines_are_written_in_order(pipe: Pipe) -> None:
    writer = pipe.writer()
    for number in range(1000):
        writer.put(str(number), Priority.OTHER)
        if number % 100 == 99:
            expected = [str(each) for each in range(number - 99, number + 1)]
            assert pipe.read_lines(until=str(number)) == expected
    assert sum(writer.dropped.values()) == 0


def test_a_file_that_is_not_read_does_not_block_and_dropped_lines_are_announced_in_their_place(pipe: Pipe) -> None:
    writer = pipe.writer()
    lines = flood(writer, Priority.OTHER, 2 * 1024)
    dropped = writer.dropped[Priority.OTHER]
    pipe.read_lines(until=lines[0])
    # There is room again when most lines have been read.
    accepted = pipe.read_lines(until=lines[400])
    writer.put("after", Priority.OTHER)
    rest = pipe.read_lines(until="after")

    assert 0 < dropped < len(lines)
    assert writer.dropped == {Priority.OTHER: dropped, Priority.ERROR: 0, Priority.AUDIT: 0}
    assert [lines[0], *accepted, *rest[:-2]] == lines[:-dropped]
    assert rest[-2] == f"dropped OTHER={dropped} ERROR=0 AUDIT=0"


def test_dropped_lines_are_announced_without_a_later_line(pipe: Pipe) -> None:
    writer = pipe.writer()
    lines = flood(writer, Priority.OTHER, 1024)
    dropped = writer.dropped[Priority.OTHER]

    announcement = f"dropped OTHER={dropped} ERROR=0 AUDIT=0"
    assert pipe.read_lines(until=announcement) == [*lines[:-dropped], announcement]


def test_errors_and_audit_lines_survive_a_flood_of_other_lines(pipe: Pipe) -> None:
    writer = pipe.writer()
    flood(writer, Priority.OTHER, 1024)
    errors = flood(writer, Priority.ERROR, 50)
    audit = flood(writer, Priority.AUDIT, 400)
    writer.put("lost", Priority.OTHER)
    writer.put("end", Priority.AUDIT)
    found = pipe.read_lines(until="end")

    assert (writer.dropped[Priority.ERROR], writer.dropped[Priority.AUDIT]) == (0, 0)
    assert [line for line in found if line.startswith("ERROR")] == errors
    assert [line for line in found if line.startswith("AUDIT")] == audit
    assert "lost" not in found
    assert not [line for line in found if line.startswith("dropped")], "there is no room again yet"


def test_errors_do_not_take_the_room_of_audit_lines(pipe: Pipe) -> None:
    writer = pipe.writer()
    flood(writer, Priority.ERROR, 2 * 1024)
    flood(writer, Priority.AUDIT, 400)

    assert writer.dropped[Priority.ERROR] > 0
    assert writer.dropped[Priority.AUDIT] == 0


def test_too_many_audit_lines_are_dropped_and_counted_apart(pipe: Pipe) -> None:
    writer = pipe.writer()
    lines = flood(writer, Priority.AUDIT, 2 * 1024)
    dropped = writer.dropped[Priority.AUDIT]
    found = pipe.read_lines(until=f"dropped OTHER=0 ERROR=0 AUDIT={dropped}")

    assert found[:-1] == lines[:-dropped]


def test_a_line_longer_than_the_buffer_is_written_if_nothing_waits(pipe: Pipe) -> None:
    writer = pipe.writer()
    line = 2048 * KIB
    writer.put(line, Priority.OTHER)

    assert pipe.read_lines(until=line) == [line]


def test_a_non_blocking_file_gets_every_byte(pipe: Pipe) -> None:
    os.set_blocking(pipe.stream.fileno(), False)
    writer = pipe.writer()
    lines = [*flood(writer, Priority.OTHER, 200), 100 * KIB, "end"]
    for line in lines[-2:]:
        writer.put(line, Priority.OTHER)

    assert pipe.read_lines(until="end") == lines


def test_lines_of_several_threads_are_not_mixed(pipe: Pipe) -> None:
    writer = pipe.writer()
    lines = {f"{thread} {number} {300 * 'x'}" for thread in range(8) for number in range(50)}

    def write(thread: int) -> None:
        for number in range(50):
            writer.put(f"{thread} {number} {300 * 'x'}", Priority.OTHER)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    writer.put("end", Priority.OTHER)

    assert set(pipe.read_lines(until="end")) == {*lines, "end"}


def test_lines_that_a_full_disk_refused_are_written_when_there_is_space(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as stream:
        writer = ThreadWriter(stream, notice)
        writer.put("first", Priority.OTHER)
        writer.flush(LONG_S)  # Returns, because the write fails.
        with (tmp_path / "log").open("w") as file:
            os.dup2(file.fileno(), stream.fileno())
        writer.put("second", Priority.OTHER)
        end(writer)

        assert (tmp_path / "log").read_text() == "first\nsecond\n"
        assert sum(writer.dropped.values()) == 0


def test_a_closed_pipe_drops_lines_only_when_the_buffer_is_full(pipe: Pipe) -> None:
    pipe.reader.close()
    writer = pipe.writer()
    flood(writer, Priority.OTHER, 400)
    before = writer.dropped[Priority.OTHER]
    flood(writer, Priority.OTHER, 400)
    writer.flush(LONG_S)

    assert before == 0
    assert writer.dropped[Priority.OTHER] > 0


def test_flush_waits_for_a_stalled_file_no_longer_than_allowed(pipe: Pipe) -> None:
    writer = pipe.writer()
    lines = flood(writer, Priority.OTHER, 10)
    writer.flush(0.01)
    writer.close()

    assert pipe.read_lines(until=lines[-1]) == lines


def test_flush_waits_until_all_is_written(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        writer = ThreadWriter(stream, notice)
        lines = flood(writer, Priority.OTHER, 400)
        writer.flush(LONG_S)
        writer.close()

        assert (tmp_path / "log").read_text().splitlines() == lines


def test_lines_after_the_end_are_written_if_that_does_not_block(pipe: Pipe) -> None:
    writer = pipe.writer()
    writer.flush(LONG_S)
    writer.close()
    first, *_ = flood(writer, Priority.OTHER, 10)  # Returns, though the pipe is full.

    assert pipe.read_lines(until=first) == [first]


def test_a_line_logged_while_another_is_added_does_not_deadlock(pipe: Pipe) -> None:
    """A finalizer may log at any point; here it does so while the notice is made."""

    def logging_notice(_dropped: Dropped) -> str:
        writer.put("by a finalizer", Priority.AUDIT)
        return "dropped"

    writer = pipe.writer(logging_notice)
    lines = flood(writer, Priority.OTHER, 1024)
    pipe.read_lines(until=lines[400])
    writer.put("after", Priority.OTHER)

    assert pipe.read_lines(until="after")[-3:] == ["by a finalizer", "dropped", "after"]
