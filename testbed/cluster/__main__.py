"""``python -m testbed.cluster up|down``: run a real cluster until it is ended with ``down``."""

import argparse
import asyncio
import shutil
import sys
import time
from pathlib import Path

import yaml

from testbed import images
from testbed.cluster import host, machine_lock
from testbed.cluster.cleanup import sweep
from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import Dapr
from testbed.cluster.workloads import OrderApp, RedisInCluster, state_store
from toolchain import cache
from toolchain.errors import TestbedError
from toolchain.helm import HELM

_INTERRUPTED = 130
_ENDED_WITHIN_S = 60.0


def main() -> int:
    """Start or end this user's cluster."""
    parser = argparse.ArgumentParser(prog="python -m testbed.cluster", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="up|down")
    up = commands.add_parser("up", help="start the cluster and show how to use it")
    up.add_argument("--dapr", default="", metavar="VERSION", help="install this version of Dapr, or upgrade to it")
    up.add_argument("--containerd", default="containerd", choices=["containerd", "containerd-2"])
    up.set_defaults(act=lambda given: _up(given.containerd, given.dapr))
    commands.add_parser("down", help="end the cluster and remove everything it created").set_defaults(
        act=lambda _: _down()
    )
    given = parser.parse_args()
    try:
        host.require_root()
        asyncio.run(given.act(given))
    except TestbedError as error:
        _log(str(error))
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


async def _up(containerd: str, dapr_version: str) -> None:
    began = time.monotonic()
    cluster = _cluster()
    if cluster.is_up:
        _log("The cluster is already running.")
    else:
        _log("Starting the cluster ...")
        preloaded = [images.pause().file, images.busybox().file]
        await cluster.start(host.programs(containerd), preloaded, notify=_log, detached=True)
        _log(f"The cluster is ready after {time.monotonic() - began:.0f} s.")
    if dapr_version:
        await _install_dapr(cluster, dapr_version)
        _log(f"Dapr {dapr_version} is ready after {time.monotonic() - began:.0f} s.")
    print(_usage(cluster))


async def _install_dapr(cluster: Cluster, version: str) -> None:
    dapr = Dapr(cluster)
    found = await dapr.version()
    if found != version:
        _log(f"Installing Dapr {version}{f' in place of {found}' if found else ''} ...")
    await dapr.bring_to(version)
    for image in (images.redis(), images.order_app()):
        await cluster.import_image(image.file)
    redis = RedisInCluster(cluster, "default", "redis")
    example = [*redis.manifests, state_store(redis), *OrderApp(cluster, "default").manifests]
    if not _example(cluster).exists():  # a new one would have a different password
        _example(cluster).write_text(yaml.safe_dump_all(example, sort_keys=False), encoding="utf-8")


async def _down() -> None:
    cluster = _cluster()
    holder = machine_lock.current_holder()
    if holder and holder.directory != str(cluster.state):
        _log(f"Your cluster is not running. This machine's cluster is held by {holder} and is not ended.")
        return
    if holder:
        await cluster.stop()
    with await machine_lock.acquire(_log, _ENDED_WITHIN_S) as lock:
        sweep(lock)
        shutil.rmtree(cluster.directory, ignore_errors=True)
    print("The cluster is removed.")


def _cluster() -> Cluster:
    return Cluster(cache.root() / "cluster", "`make testbed-up`")


def _example(cluster: Cluster) -> Path:
    return cluster.state / "order-app.yaml"


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _usage(cluster: Cluster) -> str:
    path = ":".join(str(each.parent) for each in (Path(cluster.facts["kubectl"]), cache.provide(HELM)))
    parts = [_USE, _EXAMPLE] if _example(cluster).exists() else [_USE]
    return "\n".join(parts).format(path=path, example=_example(cluster), **cluster.facts) + _END


_USE = """\
In this shell:
  export KUBECONFIG={kubeconfig} KUBECACHEDIR={kubeconfig}.cache PATH={path}:$PATH

Try next:
  kubectl get pods --all-namespaces
  kubectl run shell --rm --stdin --tty --image=local.test/busybox:1 --image-pull-policy=IfNotPresent

The node's address is {node}. This machine reaches pods and Services at their addresses; pods reach it at {machine}.
There is no image registry; import each image from an archive:
  {ctr} --address={socket} --namespace=k8s.io images import ARCHIVE
"""
_EXAMPLE = """\
The order application with its sidecar, which stores orders in Redis:
  kubectl apply -f {example}
  kubectl rollout status deployment/order-app
  app=http://$(kubectl get service order-app --output=jsonpath={{.spec.clusterIP}}):3000
  curl -d '{{"data": {{"orderId": "42"}}}}' $app/neworder; curl $app/order
  kubectl get component statestore --output=yaml
"""
_END = "\n`make testbed-up DAPR=VERSION` installs or upgrades Dapr; `make testbed-down` removes everything."


if __name__ == "__main__":
    sys.exit(main())
