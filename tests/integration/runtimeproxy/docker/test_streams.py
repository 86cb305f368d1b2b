"""Requests that pass a proxy in Docker mode unchanged: streams, hijacked connections, large bodies."""

from tests.integration.runtimeproxy.docker.bed import DockerBed


async def test_the_docker_command_line_runs_containers_through_the_proxy(docker_bed: DockerBed) -> None:
    image = docker_bed.dockerd.image

    assert await docker_bed.cli("run", "--network=none", image, "-c", "echo inside") == "inside"
    echoed = await docker_bed.cli("run", "-i", "--network=none", "--entrypoint=/bin/cat", image, stdin=b"half\nclose")
    assert echoed == "half\nclose"
    name = await docker_bed.cli("run", "--detach", "--network=none", image, "-c", "exec sleep 1000")
    assert await docker_bed.cli("exec", "-i", name, "sh", "-c", "wc -c", stdin=b"x" * 3_000_000) == "3000000"
    assert docker_bed.proxy.resident_bytes() < 36 * 2**20
