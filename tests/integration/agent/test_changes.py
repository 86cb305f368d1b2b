"""Good changes on a real sidecar: each is in use when it is acknowledged."""

import json
from pathlib import Path

from governor.agent.verification.verdicts import Reading
from governor.domain.documents import Unproven
from governor.domain.reports import State, acknowledged
from testbed.pytest_plugin import StartRedis
from testbed.redis import Redis
from testbed.waiting import until
from tests.integration.agent.bed import AgentBed, component, fingerprint, resource, resource_report, running_agent

RESILIENCY = {"policies": {"timeouts": {"short": "3s"}}, "targets": {}}


def store(redis: Redis) -> dict[str, object]:
    return component("statestore", "state.redis", redisHost=redis.address, redisPassword=redis.password)


async def restarted_in_place(bed: AgentBed) -> Reading | None:
    now = await bed.sidecar.read()
    healthy = now.status is not None and now.status.healthy
    return now if healthy and now.restarted_in_place else None


async def set_value(redis: Redis, value: str) -> None:
    await redis.execute("HSET", "app||who", "data", json.dumps(value), "version", "1")


async def test_a_repointed_component_is_verified_in_the_running_process_and_in_use(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    one, two = await start_redis(), await start_redis()
    await set_value(one, "one")
    await set_value(two, "two")
    async with running_agent(tmp_path, daprd_binary) as bed:
        assert acknowledged(await bed.deliver(store(one)))
        assert await bed.get("/v1.0/state/statestore/who") == (200, '"one"')
        process = bed.sidecar.process

        report = await bed.deliver(store(two))

        assert acknowledged(report)
        assert await bed.get("/v1.0/state/statestore/who") == (200, '"two"')
        assert bed.sidecar.process == process
        assert "state.redis initialised 1 -> 2 times" in resource_report(report, "statestore").all_evidence[-1].text
        assert [each.state for each in report.workloads] == [State.VERIFIED]


async def test_a_new_component_is_verified_and_an_unchanged_one_stays_verified(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        first = await bed.deliver(component("one", "state.in-memory"))
        file = bed.resources / "component.one.yaml"
        before = fingerprint(file)

        report = await bed.deliver(component("one", "state.in-memory"), component("two", "state.in-memory"))

        assert acknowledged(report)
        assert resource_report(report, "one").all_evidence[-1] == resource_report(first, "one").all_evidence[-1]
        assert fingerprint(file) == before
        assert sorted(path.name for path in bed.resources.iterdir()) == ["component.one.yaml", "component.two.yaml"]
        assert {path.stat().st_mode & 0o777 for path in bed.resources.iterdir()} == {0o600}


async def test_a_removed_component_is_absent_from_sidecar_and_directory(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(component("one", "state.in-memory"), component("two", "state.in-memory"))
        process = bed.sidecar.process

        report = await bed.deliver(component("one", "state.in-memory"))

        assert acknowledged(report)
        assert "no longer listed" in resource_report(report, "two").all_evidence[-1].text
        assert bed.sidecar.process == process
        assert [path.name for path in bed.resources.iterdir()] == ["component.one.yaml"]
        assert (await bed.get("/v1.0/state/two/key"))[0] == 400


async def test_a_changed_subscription_is_verified_by_the_listing_of_the_running_sidecar(
    tmp_path: Path, daprd_binary: Path
) -> None:
    def subscription(path: str) -> dict[str, object]:
        spec = {"pubsubname": "pubsub", "topic": "orders", "routes": {"default": path}}
        return resource("Subscription", "orders", spec, "dapr.io/v2alpha1")

    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(component("pubsub", "pubsub.in-memory"), subscription("/old"))
        process = bed.sidecar.process

        report = await bed.deliver(component("pubsub", "pubsub.in-memory"), subscription("/new"))

        assert acknowledged(report)
        assert bed.sidecar.process == process
        assert '"path":"/new"' in (await bed.get("/v1.0/metadata"))[1]


async def test_a_kind_without_live_proof_restarts_the_sidecar_once(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(component("one", "state.in-memory"))

        report = await bed.deliver(component("one", "state.in-memory"), resource("Resiliency", "calm", RESILIENCY))

        assert acknowledged(report)
        assert bed.sidecar.starts == 2
        assert "started after the write" in resource_report(report, "calm").all_evidence[-1].text
        assert "started after the write" in resource_report(report, "one").all_evidence[-1].text


async def test_a_kind_without_live_proof_is_unproven_if_the_policy_forbids_a_restart(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        one = component("one", "state.in-memory")
        await bed.deliver(one)

        report = await bed.deliver(one, resource("Resiliency", "calm", RESILIENCY), unproven=Unproven.REPORT)

        assert not acknowledged(report)
        assert (resource_report(report, "calm").state, resource_report(report, "one").state) == (
            State.UNPROVEN,
            State.VERIFIED,
        )
        assert "does not show which content" in resource_report(report, "calm").all_evidence[-1].text
        assert bed.sidecar.starts == 1
        assert (bed.resources / "resiliency.calm.yaml").exists()


async def test_the_counters_of_a_sidecar_that_restarted_in_place_prove_nothing(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        calm = resource("Resiliency", "calm", RESILIENCY)
        await bed.deliver(component("one", "state.in-memory"))
        before = await bed.sidecar.read()
        await bed.deliver(component("one", "state.in-memory"), calm, unproven=Unproven.REPORT)
        after = await until(lambda: restarted_in_place(bed))
        assert after is not None
        assert (after.instance, before.restarted_in_place) == (before.instance, False)

        report = await bed.deliver(component("one", "state.in-memory", note="new"), calm, unproven=Unproven.REPORT)

        assert resource_report(report, "one").state is State.UNPROVEN
        assert "counters are not evidence" in resource_report(report, "one").all_evidence[-1].text
        assert bed.sidecar.starts == 1


async def test_a_configuration_becomes_the_config_file_of_a_new_process(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver()

        report = await bed.deliver(resource("Configuration", "calm", {"features": [{"name": "Mine", "enabled": True}]}))

        assert acknowledged(report)
        assert "listed as the marker of its content" in resource_report(report, "calm").all_evidence[-1].text
        assert '"Mine"' in (await bed.get("/v1.0/metadata"))[1]
        assert list(bed.resources.iterdir()) == []


async def test_a_new_label_is_written_and_keeps_the_proofs(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        one = component("one", "state.in-memory")
        await bed.deliver(one)
        one["metadata"] = {**one["metadata"], "labels": {"team": "blue"}}

        report = await bed.deliver(one)

        assert acknowledged(report)
        assert "team: blue" in (bed.resources / "component.one.yaml").read_text()
        assert bed.sidecar.starts == 1


async def test_a_resource_outside_every_scope_is_acknowledged(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        report = await bed.deliver(component("one", "state.in-memory", scopes=["another"]))

        assert acknowledged(report)
        assert "no sidecar is in its scope" in resource_report(report, "one").all_evidence[-1].text


async def test_two_changed_bindings_of_one_type_are_verified_in_a_fresh_process(
    tmp_path: Path, daprd_binary: Path
) -> None:
    def bindings(port: int) -> list[dict[str, object]]:
        return [component(name, "bindings.http", url=f"http://127.0.0.1:{port}") for name in ("one", "two")]

    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(*bindings(1))

        report = await bed.deliver(*bindings(2))

        assert acknowledged(report)
        assert bed.sidecar.starts == 2


async def test_a_change_that_supersedes_another_is_acknowledged_only_when_in_use(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    one, two = await start_redis(), await start_redis()
    await set_value(one, "one")
    await set_value(two, "two")
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(store(one))
        for redis, answer in [(two, '"two"'), (one, '"one"')]:
            # An earlier delivery is still in progress: it may be written and loaded at any moment.
            other = one if redis is two else two
            await bed.inbox.accept(bed.sign([store(other)]), bed.membership)
            report = await bed.deliver(store(redis))

            assert acknowledged(report)
            assert await bed.get("/v1.0/state/statestore/who") == (200, answer)
