"""The running runtime proxy loads no libraries that it never uses."""

from pathlib import Path

from tests.integration.runtimeproxy.bed import Bed


async def test_the_process_loads_neither_openssl_nor_the_command_line(bed: Bed) -> None:
    assert (await bed.client.call("Version")).code == "OK"
    assert (await bed.proxy.get("/metrics"))[0] == 200

    mapped = Path(f"/proc/{bed.proxy.pid}/maps").read_text()
    assert "libpython" in mapped or "python3" in mapped
    assert "uvloop" in mapped
    assert [word for word in ("libssl", "libcrypto", "_ssl.", "_yaml") if word in mapped] == []


async def test_the_proxy_keeps_the_process_id_of_its_command(bed: Bed) -> None:
    command = Path(f"/proc/{bed.proxy.pid}/cmdline").read_bytes().split(b"\0")
    assert b"governor.runtimeproxy" in command
    assert str(bed.proxy.socket) in command[command.index(b"governor.runtimeproxy") + 1].decode()
