"""What the running runtime proxy has loaded: nothing that a process between unix sockets never uses."""

from pathlib import Path

from tests.integration.runtimeproxy.bed import Bed


async def test_neither_openssl_nor_the_command_line_is_in_the_process(bed: Bed) -> None:
    assert (await bed.client.call("Version")).code == "OK"
    assert (await bed.proxy.get("/metrics"))[0] == 200

    mapped = Path(f"/proc/{bed.proxy.pid}/maps").read_text()
    assert "libpython" in mapped or "python3" in mapped
    assert "uvloop" in mapped
    assert [word for word in ("libssl", "libcrypto", "_ssl.", "_yaml") if word in mapped] == []


async def test_it_runs_under_the_number_of_the_command_that_was_started(bed: Bed) -> None:
    command = Path(f"/proc/{bed.proxy.pid}/cmdline").read_bytes().split(b"\0")
    assert b"governor.runtimeproxy" in command
    assert str(bed.proxy.socket) in command[command.index(b"governor.runtimeproxy") + 1].decode()
