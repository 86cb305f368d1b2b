"""docker-py behaves through the proxy as it does with dockerd itself."""

import asyncio
import gc
import io
import itertools
import socket
import tarfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import docker
import pytest
from docker.errors import APIError, ContainerError, NotFound

from tests.integration.runtimeproxy.docker_clients.bed import IDLE, DockerBed

_TIMEOUT_S = 120


@contextmanager
def _client(bed: DockerBed) -> Iterator[Any]:
    with closing(docker.DockerClient(base_url=f"unix://{bed.socket}", timeout=_TIMEOUT_S)) as client:
        yield client


async def _in_thread(bed: DockerBed, use: Callable[[Any, str], None]) -> None:
    """Run blocking calls of a client, which are given the image."""

    def run() -> None:
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            with _client(bed) as client:
                use(client, bed.image)
            gc.collect()  # docker-py leaves sockets of streams to the collector

    await asyncio.to_thread(run)


async def test_containers_are_run_changed_and_removed(bed: DockerBed) -> None:
    def use(client: Any, image: str) -> None:
        assert client.ping()
        assert client.containers.run(image, ["-c", "echo out"], remove=True) == b"out\n"
        with pytest.raises(ContainerError) as failed:
            client.containers.run(image, ["-c", "echo err >&2; exit 4"], remove=True)
        assert failed.value.exit_status == 4
        assert "err" in str(failed.value)

        container = client.containers.run(
            image, ["-c", IDLE], detach=True, name="py-1.a", environment={"K": "v"}, cpu_shares=512, labels={"l": "1"}
        )
        assert container.exec_run(["sh", "-c", "echo $K; echo no >&2; exit 6"], demux=True) == (6, (b"v\n", b"no\n"))
        container.update(cpu_shares=128, mem_limit="64m", memswap_limit="64m")
        container.reload()
        assert [container.attrs["HostConfig"][key] for key in ("CpuShares", "Memory")] == [128, 64 * 2**20]
        container.rename("py-2")
        assert [each.name for each in client.containers.list(filters={"label": "l=1"})] == ["py-2"]
        container.kill()
        assert container.wait()["StatusCode"] == 137
        container.start()
        container.restart(timeout=0)
        container.stop(timeout=0)
        container.remove()
        with pytest.raises(NotFound, match="No such container"):
            client.containers.get("py-2")
        client.containers.create(image, ["-c", IDLE], name="twice")
        with pytest.raises(APIError, match=r"409 Client Error.*is already in use"):
            client.containers.create(image, ["-c", IDLE], name="twice")

    await _in_thread(bed, use)


async def test_streams_are_read_while_they_are_sent(bed: DockerBed) -> None:
    def use(client: Any, image: str) -> None:
        script = "echo one; while [ ! -e /tmp/go ]; do usleep 20000; done; echo two; exec sleep 100000"
        container = client.containers.run(image, ["-c", script], detach=True)
        logs = container.logs(stream=True, follow=True)
        assert next(logs) == b"one\n"
        container.exec_run(["touch", "/tmp/go"])
        assert next(logs) == b"two\n"
        stats = container.stats(stream=True, decode=True)
        assert [each["id"] for each in itertools.islice(stats, 2)] == [container.id] * 2
        _, output = container.exec_run(["sh", "-c", "echo first; read nothing; echo never"], stream=True, stdin=True)
        assert next(output) == b"first\n"
        events = client.events(decode=True, filters={"container": container.id, "event": "kill"})
        container.kill()
        assert next(events)["Actor"]["ID"] == container.id
        for stream in (logs, stats, output, events):
            stream.close()

    await _in_thread(bed, use)


async def test_files_and_archives_pass(bed: DockerBed) -> None:
    data = bytes(range(256)) * 4096

    def use(client: Any, image: str) -> None:
        container = client.containers.run(image, ["-c", IDLE], detach=True)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            member = tarfile.TarInfo("data")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        assert container.put_archive("/tmp", packed.getvalue())
        chunks, stat = container.get_archive("/tmp/data")
        assert stat["size"] == len(data)
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            (found,) = (archive.extractfile(each) for each in archive)
            assert found is not None
            assert found.read() == data
        built, _ = client.images.build(fileobj=io.BytesIO(f"FROM {image}\nLABEL a=b\n".encode()), tag="local.test/py:1")
        assert built.labels == {"a": "b"}
        saved = b"".join(built.save(named=True))
        client.images.remove("local.test/py:1")
        (loaded,) = client.images.load(saved)
        assert loaded.tags == ["local.test/py:1"]
        client.images.remove("local.test/py:1")

    await _in_thread(bed, use)


async def test_an_attached_socket_is_half_closed(bed: DockerBed) -> None:
    def use(client: Any, image: str) -> None:
        container = client.containers.create(image, ["-c", "cat; echo end"], stdin_open=True, tty=False)
        attached = container.attach_socket(params={"stdin": 1, "stdout": 1, "stream": 1})
        container.start()
        attached._sock.sendall(b"sent")
        attached._sock.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: attached._sock.recv(65536), b""))
        attached.close()
        assert _frames(received) == (1, b"sentend\n")
        container.remove(force=True)

    await _in_thread(bed, use)


def _frames(data: bytes) -> tuple[int, bytes]:
    """Return the stream's number and the joined payloads of frames of one stream."""
    numbers, payloads = set(), []
    while data:
        length = int.from_bytes(data[4:8], "big")
        numbers.add(data[0])
        payloads.append(data[8 : 8 + length])
        data = data[8 + length :]
    (number,) = numbers
    return number, b"".join(payloads)
