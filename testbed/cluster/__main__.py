"""``python -m testbed.cluster up|down``: the real cluster for a person, until they have done with it."""

import argparse
import asyncio
import shutil
import sys
import time
from pathlib import Path

import yaml

from testbed import images
from testbed.cluster import requisites, turn
from testbed.cluster.cluster import Cluster
from testbed.cluster.dapr import Dapr
from testbed.cluster.leftovers import sweep
from testbed.cluster.workloads import OrderApp, RedisInCluster, state_store
from toolchain import cache
from toolchain.errors import TestbedError
from toolchain.helm import HELM

_INTERRUPTED = 130
_ENDED_WITHIN_S = 60.0


def main() -> int:
    """Start or end the cluster of this user."""
    parser = argparse.ArgumentParser(prog="python -m testbed.cluster", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="up|down")
    up = commands.add_parser("up", help="start it and say how to use it")
    up.add_argument("--dapr", default="", metavar="VERSION", help="install Dapr of that version, or upgrade to it")
    up.add_argument("--containerd", default="containerd", choices=["containerd", "containerd-2"])
    up.set_defaults(act=lambda given: _up(given.containerd, given.dapr))
    commands.add_parser("down", help="end it and remove everything of it").set_defaults(act=lambda _: _down())
    given = parser.parse_args()
    try:
        requisites.require_root()
        asyncio.run(given.act(given))
    except TestbedError as error:
        _say(str(error))
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


async def _up(containerd: str, dapr_version: str) -> None:
    began = time.monotonic()
    cluster = _cluster()
    if cluster.is_up:
        _say("The cluster is there already.")
    else:
        _say("The cluster is being started ...")
        ready_made = [images.pause().file, images.busybox().file]
        await cluster.start(requisites.programs(containerd), ready_made, say=_say, lasting=True)
        _say(f"The cluster is ready after {time.monotonic() - began:.0f} s.")
    if dapr_version:
        await _bring_dapr(cluster, dapr_version)
        _say(f"Dapr {dapr_version} is ready after {time.monotonic() - began:.0f} s.")
    print(_advice(cluster))


async def _bring_dapr(cluster: Cluster, version: str) -> None:
    dapr = Dapr(cluster)
    found = await dapr.version()
    if found != version:
        _say(f"Dapr {version} is being installed{f' in place of {found}' if found else ''} ...")
    await dapr.bring_to(version)
    for image in (images.redis(), images.order_app()):
        await cluster.import_image(image.file)
    redis = RedisInCluster(cluster, "default", "redis")
    example = [*redis.manifests, state_store(redis), *OrderApp(cluster, "default").manifests]
    if not _example(cluster).exists():  # another one would have another password
        _example(cluster).write_text(yaml.safe_dump_all(example, sort_keys=False), encoding="utf-8")


async def _down() -> None:
    cluster = _cluster()
    other = turn.holder()
    if other and other.directory != str(cluster.state):
        _say(f"No cluster of yours runs. There is that of {other}; it is left alone.")
        return
    if other:
        await cluster.stop()
    with await turn.wait(_say, _ENDED_WITHIN_S) as lock:
        sweep(lock)
        shutil.rmtree(cluster.directory, ignore_errors=True)
    print("Nothing of the cluster is left.")


def _cluster() -> Cluster:
    return Cluster(cache.root() / "cluster", "`make testbed-up`")


def _example(cluster: Cluster) -> Path:
    return cluster.state / "order-app.yaml"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _advice(cluster: Cluster) -> str:
    path = ":".join(str(each.parent) for each in (Path(cluster.facts["kubectl"]), cache.provide(HELM)))
    parts = [_USE, _EXAMPLE] if _example(cluster).exists() else [_USE]
    return "\n".join(parts).format(path=path, example=_example(cluster), **cluster.facts) + _END


_USE = """\
In this shell:
  export KUBECONFIG={kubeconfig} KUBECACHEDIR={kubeconfig}.cache PATH={path}:$PATH

Try next:
  kubectl get pods --all-namespaces
  kubectl run shell --rm --stdin --tty --image=local.test/busybox:1 --image-pull-policy=IfNotPresent

The node is {node}. You reach pods and Services at their own addresses; pods reach what you serve here at {machine}.
There is no image registry: bring images as archives, for each of them
  {ctr} --address={socket} --namespace=k8s.io images import ARCHIVE
"""
_EXAMPLE = """\
The order application with its sidecar, storing in Redis:
  kubectl apply -f {example}
  kubectl rollout status deployment/order-app
  app=http://$(kubectl get service order-app --output=jsonpath={{.spec.clusterIP}}):3000
  curl -d '{{"data": {{"orderId": "42"}}}}' $app/neworder; curl $app/order
  kubectl get component statestore --output=yaml
"""
_END = "\n`make testbed-up DAPR=VERSION` installs or upgrades Dapr; `make testbed-down` removes everything."


if __name__ == "__main__":
    sys.exit(main())
