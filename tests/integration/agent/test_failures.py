"""Rejections and failures on a real sidecar: nothing foreign is touched and no failure is hidden."""

from pathlib import Path
from typing import Any

from governor.agent.platforms.local.files import resource_file
from governor.domain.reports import State, acknowledged, overall
from testbed.pytest_plugin import StartRedis
from testbed.waiting import until
from tests.integration.agent.bed import AgentBed, component, fingerprint, resource, resource_report, running_agent


async def answers(bed: AgentBed) -> bool:
    return (await bed.sidecar.read()).status is not None


async def test_a_resource_defined_in_a_foreign_file_is_rejected_with_the_file_named(
    tmp_path: Path, daprd_binary: Path
) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        foreign = bed.resources / "mine.yaml"
        foreign.write_bytes(resource_file(component("one", "state.in-memory", owner="me"), "default").content)
        before = fingerprint(foreign)

        report = await bed.deliver(component("one", "state.in-memory"), component("two", "state.in-memory"))

        assert (resource_report(report, "one").state, resource_report(report, "two").state) == (
            State.FAILED,
            State.RECEIVED,
        )
        assert "resources/mine.yaml" in resource_report(report, "one").all_evidence[-1].text
        assert fingerprint(foreign) == before
        assert [path.name for path in bed.resources.iterdir()] == ["mine.yaml"]
        # The sidecar still runs, with what it had.
        assert await until(lambda: answers(bed))


async def test_a_foreign_file_is_never_removed(tmp_path: Path, daprd_binary: Path) -> None:
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(component("one", "state.in-memory"))
        foreign = bed.resources / "component.two.yaml"
        foreign.write_bytes(resource_file(component("two", "state.in-memory"), "default").content)

        assert acknowledged(await bed.deliver())

        assert [path.name for path in bed.resources.iterdir()] == ["component.two.yaml"]


async def test_a_second_namespace_and_a_second_configuration_are_rejected_by_name(
    tmp_path: Path, daprd_binary: Path
) -> None:
    elsewhere: dict[str, Any] = component("one", "state.in-memory")
    elsewhere["metadata"]["namespace"] = "elsewhere"
    configurations = [resource("Configuration", name, {}) for name in ("calm", "wild")]
    async with running_agent(tmp_path, daprd_binary) as bed:
        report = await bed.deliver(elsewhere, *configurations)

        assert "another namespace is not supported" in resource_report(report, "one").all_evidence[-1].text
        assert "calm, wild" in resource_report(report, "wild").all_evidence[-1].text
        assert list(bed.resources.iterdir()) == []


async def test_a_component_that_cannot_initialise_fails_with_daprds_error_without_secrets(
    tmp_path: Path, daprd_binary: Path, start_redis: StartRedis
) -> None:
    redis = await start_redis()
    good = component("statestore", "state.redis", redisHost=redis.address, redisPassword=redis.password)
    # Dapr repeats this host in its error; because it is also the password, it must be redacted.
    host = "no-such-host.invalid:6379"
    bad = component("statestore", "state.redis", redisHost=host, redisPassword="no-such-host.invalid")
    bad["spec"]["initTimeout"] = "50s"  # the default of 5 s is too short on a busy machine
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(good)

        report = await bed.deliver(bad, component("other", "state.in-memory"))

        failed = resource_report(report, "statestore")
        assert failed.state is State.FAILED
        assert "initialization error occurred for statestore" in failed.all_evidence[-1].text
        assert "***:6379" in failed.all_evidence[-1].text
        assert "no-such-host" not in repr(report)
        assert resource_report(report, "other").state is not State.VERIFIED
        assert overall(report) is State.FAILED


async def test_a_failed_component_with_ignore_errors_is_reported_as_failed(tmp_path: Path, daprd_binary: Path) -> None:
    bad = component("statestore", "state.redis", redisHost="127.0.0.1:1")
    bad["spec"] |= {"ignoreErrors": True, "initTimeout": "50s"}  # the default of 5 s is too short on a busy machine
    async with running_agent(tmp_path, daprd_binary) as bed:
        report = await bed.deliver(bad)

        assert resource_report(report, "statestore").state is State.FAILED
        assert "connection refused" in resource_report(report, "statestore").all_evidence[-1].text
        assert "rolled back to the empty bundle; verified" in report.workloads[0].evidence[-1].text


async def test_a_failure_is_judged_without_the_sidecars_log(tmp_path: Path, daprd_binary: Path) -> None:
    bad = component("statestore", "state.redis")
    bad["spec"] |= {"ignoreErrors": True}
    async with running_agent(tmp_path, daprd_binary) as bed:
        await bed.deliver(component("one", "state.in-memory"))
        bed.sidecar.log_file.unlink()

        report = await bed.deliver(component("one", "state.in-memory"), bad)

        assert resource_report(report, "statestore").state is State.FAILED
        assert "rolled back to" in report.workloads[0].evidence[-1].text
        assert list(await bed.state.trials()) == [report.digest]
