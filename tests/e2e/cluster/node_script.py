"""What kubelet asks of a container runtime, as one script: run directly and through a proxy, it observes the same."""

import asyncio
import io
import json
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from testbed import images
from testbed.cluster.cluster import Cluster
from testbed.cluster.workloads import Manifest, apply, manifest
from testbed.recipes import provide
from testbed.registry import Registry
from testbed.waiting import until
from toolchain.oci import LOCAL, Archive

_BUSYBOX = f"{LOCAL}/busybox:1"
_PORT = 8080
_WAIT = "--timeout=120s"
_SERVE = f"trap exit TERM; echo serving; httpd -f -p {_PORT} -h /shared & wait"

EXPECTED = {
    "exec": "init\nstarted\n",
    "attach": "hello\n",
    "logs": "serving\n",
    "port-forward": "started\n",
    "pulled": "True",
    "static": "True",
    "evicted": "gone",
    "resized": "250m",
    "lifecycle": "stopped\n",
    "restarts": {"web/init": 0, "web/sidecar": 0, "web/main": 0},
    "restarts after kubelet's": {"web/init": 0, "web/sidecar": 0, "web/main": 0},
    "unhealthy": "restarted",
}


def sleeper(name: str, **changes: Any) -> Manifest:
    """Return a pod with one container that ends on SIGTERM."""
    container = {"name": "main", "image": _BUSYBOX, "command": ["sh", "-c", "trap exit TERM; sleep infinity & wait"]}
    spec = {"terminationGracePeriodSeconds": 2, "containers": [{**container, **changes}]}
    return manifest("v1", "Pod", name, spec=spec)


def _web(marks: Path) -> Manifest:
    """Return a pod with an init container, a sidecar, all probes and lifecycle handlers."""
    mounts = [{"name": "work", "mountPath": "/shared"}, {"name": "marks", "mountPath": "/marks"}]

    def container(name: str, *command: str, **more: Any) -> Manifest:
        return {"name": name, "image": _BUSYBOX, "command": list(command), "volumeMounts": mounts, **more}

    served = {"httpGet": {"path": "/init", "port": _PORT}, "periodSeconds": 1}
    main = container(
        *("main", "sh", "-c", _SERVE),
        startupProbe={**served, "failureThreshold": 60},
        readinessProbe=served,
        livenessProbe={"exec": {"command": ["cat", "/shared/init"]}, "periodSeconds": 1},
        lifecycle={
            "postStart": {"exec": {"command": ["sh", "-c", "echo started > /shared/started"]}},
            "preStop": {"exec": {"command": ["sh", "-c", "echo stopped > /marks/stopped"]}},
        },
    )
    spec = {
        "terminationGracePeriodSeconds": 5,
        "initContainers": [
            container("init", "sh", "-c", "echo init > /shared/init"),
            container("sidecar", "sh", "-c", "trap exit TERM; sleep infinity & wait", restartPolicy="Always"),
        ],
        "containers": [main],
        "volumes": [
            {"name": "work", "emptyDir": {}},
            {"name": "marks", "hostPath": {"path": str(marks)}},
        ],
    }
    return manifest("v1", "Pod", "web", spec=spec)


@dataclass(frozen=True)
class NodeScript:
    """One run of the script in a namespace of its own."""

    cluster: Cluster
    namespace: str

    async def run(self, pulled_image: str) -> dict[str, Any]:
        """Run the script and return what was observed."""
        marks = self.cluster.state / "marks" / self.namespace
        marks.mkdir(parents=True)
        marks.chmod(0o777)  # containers run as another user
        resources = {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}}
        sick = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
        echo = sleeper("echo", command=["cat"], stdin=True, stdinOnce=True)
        echo["spec"]["restartPolicy"] = "Never"
        pods = [
            _web(marks),
            echo,
            sleeper("evicted"),
            sleeper("resized", resources=resources),
            sleeper("unhealthy", livenessProbe=sick),
            sleeper("pulled", image=pulled_image, imagePullPolicy="Always", command=["/busybox", "sleep", "infinity"]),
        ]
        static = Path(self.cluster.facts["static_pods"], f"{self.namespace}.json")
        static.write_text(json.dumps(_in_namespace(sleeper("static"), self.namespace)), encoding="utf-8")
        try:
            await apply(self.cluster, self.namespace, *pods)
            ready = ["web", "echo", "evicted", "resized", "pulled"]
            await self._kubectl("wait", "--for=condition=Ready", _WAIT, *(f"pod/{name}" for name in ready))
            return {**await self._use(), **await self._disturb(), "lifecycle": await self._delete(marks)}
        finally:
            static.unlink(missing_ok=True)

    async def _use(self) -> dict[str, Any]:
        """Use every interface of a running pod."""
        exec_, logs, attach, forwarded, resized, *_ = await asyncio.gather(
            self._kubectl("exec", "web", "--container=main", "--", "cat", "/shared/init", "/shared/started"),
            self._kubectl("logs", "web", "--container=main"),
            self._kubectl("attach", "echo", "--stdin", stdin="hello\n"),
            self._forwarded(),
            self._resize(),
            self._until_restarted("unhealthy"),
            self._evict(),
        )
        return {
            "exec": exec_,
            "logs": logs,
            "attach": attach,
            "port-forward": forwarded,
            "resized": resized,
            "unhealthy": "restarted",
            "evicted": "gone",
            "pulled": await self._ready("pulled"),
            "static": await self._ready("static-node"),
            "restarts": await self.restarts("web"),
        }

    async def _disturb(self) -> dict[str, Any]:
        await self.cluster.restart_kubelet()
        await self._kubectl("wait", "--for=condition=Ready", _WAIT, "pod/web")
        return {"restarts after kubelet's": await self.restarts("web")}

    async def _delete(self, marks: Path) -> str:
        """Delete the pod, and return what its preStop handler wrote."""
        await self._kubectl("delete", "pod", "web", "resized", "pulled", "unhealthy", _WAIT)
        return (marks / "stopped").read_text(encoding="utf-8")

    async def restarts(self, *names: str) -> dict[str, int]:
        """Return how often each container of some pods was restarted."""
        pods = [json.loads(await self._kubectl("get", "pod", name, "--output=json")) for name in names]
        return {
            f"{pod['metadata']['name']}/{each['name']}": each["restartCount"]
            for pod in pods
            for kind in ("initContainerStatuses", "containerStatuses")
            for each in pod["status"].get(kind, ())
        }

    async def _until_restarted(self, name: str) -> None:
        async def is_restarted() -> bool:
            return any((await self.restarts(name)).values())

        await until(is_restarted, every_s=0.5)

    async def _ready(self, name: str) -> str:
        await self._kubectl("wait", "--for=condition=Ready", _WAIT, f"pod/{name}")
        path = "--output=jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        return await self._kubectl("get", "pod", name, path)

    async def _evict(self) -> None:
        where = f"/api/v1/namespaces/{self.namespace}/pods/evicted/eviction"
        eviction = {**manifest("policy/v1", "Eviction", "evicted"), "deleteOptions": {"gracePeriodSeconds": 1}}
        await self.cluster.kubectl("create", "--raw", where, "--filename=-", stdin=json.dumps(eviction))
        await self._kubectl("wait", "--for=delete", _WAIT, "pod/evicted")

    async def _resize(self) -> str:
        """Resize a pod in place, and return the limit that the runtime reports."""
        patch = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "250m"}}}]}}
        await self._kubectl("patch", "pod", "resized", "--subresource=resize", f"--patch={json.dumps(patch)}")

        async def limit() -> str:
            path = "--output=jsonpath={.status.containerStatuses[0].resources.limits.cpu}"
            found = await self._kubectl("get", "pod", "resized", path)
            return found if found != "200m" else ""

        return await until(limit, every_s=0.5)

    async def _forwarded(self) -> str:
        async with (
            self._port_forward("web") as port,
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/started") as response,
        ):
            return await response.text()

    @asynccontextmanager
    async def _port_forward(self, pod: str) -> AsyncIterator[int]:
        facts = self.cluster.facts
        argv = [facts["kubectl"], f"--kubeconfig={self.cluster.kubeconfig}", f"--namespace={self.namespace}"]
        process = await asyncio.create_subprocess_exec(
            *(*argv, "port-forward", f"pod/{pod}", f":{_PORT}"),
            stdout=asyncio.subprocess.PIPE,
            env={"HOME": str(self.cluster.state)},
        )
        try:
            if process.stdout is None:
                raise AssertionError("no output")
            line = (await process.stdout.readline()).decode()  # Forwarding from 127.0.0.1:PORT -> 8080
            yield int(line.split(" -> ")[0].rpartition(":")[2])
        finally:
            process.terminate()
            await process.wait()

    async def _kubectl(self, *arguments: str, stdin: str = "") -> str:
        return await self.cluster.kubectl(f"--namespace={self.namespace}", *arguments, stdin=stdin)


@asynccontextmanager
async def node_registry(cluster: Cluster, directory: Path) -> AsyncIterator[str]:
    """Run a registry that the node can reach, and yield the name of an image in it."""
    registry = Registry(provide(["registry"])["registry"], directory, host=cluster.facts["machine"])
    async with registry:
        hosts = Path(cluster.facts["registries"], registry.address, "hosts.toml")
        hosts.parent.mkdir(parents=True)
        hosts.write_text(f'[host."http://{registry.address}"]\n', encoding="utf-8")
        # Not the imported image: kubelet would then verify all pods that use it as if they had pulled it.
        image = images.static(f"{LOCAL}/pulled/busybox:1", Path("/bin/busybox"))
        yield await _push(registry, image, "busybox")


async def _push(registry: Registry, archive: Archive, repository: str) -> str:
    """Upload an image to a registry without protection, and return the name to pull it by."""
    blobs = _blobs(archive)
    manifest = blobs.pop(archive.digest)  # last: the registry checks that its layers exist
    async with aiohttp.ClientSession(f"http://{registry.address}", raise_for_status=True) as session:
        for digest, blob in blobs.items():
            async with session.post(f"/v2/{repository}/blobs/uploads/") as begun:
                place = begun.headers["Location"]
            # As a file, since aiohttp warns of large bytes.
            async with session.put(f"{place}&digest={digest}", data=io.BytesIO(blob)):
                pass
        kind = {"Content-Type": json.loads(manifest)["mediaType"]}
        async with session.put(f"/v2/{repository}/manifests/1", data=manifest, headers=kind):
            pass
    return f"{registry.address}/{repository}:1"


def _blobs(archive: Archive) -> dict[str, bytes]:
    found = {}
    with tarfile.open(archive.file) as members:
        for member in members:
            blob = members.extractfile(member) if member.name.startswith("blobs/") else None
            if blob is not None:
                found[member.name.removeprefix("blobs/").replace("/", ":")] = blob.read()
    return found


def _in_namespace(pod: Manifest, namespace: str) -> Manifest:
    return {**pod, "metadata": {**pod["metadata"], "namespace": namespace}}
