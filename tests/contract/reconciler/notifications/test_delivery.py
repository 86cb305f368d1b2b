"""Notifications to a real web server that is down, slow or refuses; the time between the attempts is virtual."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from governor.errors import GovernorError
from governor.process.clock import VirtualClock
from governor.process.flowcontrol.backoff import Backoff
from governor.process.reconcile.reconciler import Outcome, ReconcileMetrics, Reconciler
from governor.process.telemetry.instruments import Registry
from governor.reconciler.kinds.definition import SecretKey
from governor.reconciler.kinds.failure import Sink, Webhook
from governor.reconciler.notifications.delivery import Deliveries
from governor.reconciler.notifications.notification import Event, Notification
from governor.reconciler.notifications.webhook import Endpoint, Webhooks
from testbed.kube.pki import Authority
from testbed.waiting import until
from testbed.webhook_receiver import TOKEN, Receiver, receiving


def notification(number: int = 1) -> Notification:
    fields = dict.fromkeys(
        ("time", "type", "cluster", "module", "version", "state", "reason", "message", "actor", "since", "run"), "x"
    )
    return Notification(id=f"f{number}.escalated", event=Event.ESCALATED, failure=f"f{number}", **fields)


def sink(name: str = "tickets", template: str = "") -> Sink:
    return Sink(name, Webhook(SecretKey("tickets", "url"), template=template))


class DeliveryBed:
    """Delivers notifications by the reconcile loop, on a virtual clock."""

    def __init__(self, receiver: Receiver) -> None:
        self.clock = VirtualClock()
        self._receiver = receiver
        self._registry = Registry()
        self.deliveries = Deliveries(Webhooks(self.clock), self._read)
        self.outcomes: list[Outcome] = []
        self.endpoint = Endpoint(receiver.url, TOKEN)
        self._reconciler = Reconciler[int](
            self._deliver,
            name="notifications",
            metrics=ReconcileMetrics(self._registry),
            clock=self.clock,
            backoff=Backoff(initial_s=1.0, max_s=300.0),
        )

    async def _read(self, _: Sink) -> Endpoint:
        return self.endpoint

    async def _deliver(self, number: int) -> Outcome:
        outcome = await self.deliveries.deliver(notification(number), [sink()], ())
        self.outcomes.append(outcome)
        return outcome

    async def advance(self, seconds: float, step_s: float = 10.0) -> None:
        """Let time pass; requests that begin meanwhile are completed first."""
        for _ in range(int(seconds / step_s)):
            await self.clock.advance(step_s)
            await self.idle()

    async def idle(self) -> None:
        labels = {"controller": "notifications"}

        async def is_idle() -> bool:
            return not self._registry.value("controller_runtime_active_workers", labels)

        await until(is_idle, within_s=30.0, every_s=0.001)

    def add(self, number: int = 1) -> None:
        self._reconciler.add(number)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._reconciler.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def test_a_sink_that_is_down_for_an_hour_receives_the_notification_once_and_is_not_flooded(
    receiver: Receiver,
) -> None:
    bed = DeliveryBed(receiver)
    receiver.status = 503
    async with bed.running():
        bed.add()
        await bed.advance(3600.0)
        assert receiver.accepted == []
        assert 10 <= receiver.attempts <= 60, "backoff up to five minutes"
        receiver.status = 200
        await bed.advance(300.0)
        attempts = receiver.attempts
        bed.add()
        await bed.advance(300.0)
    assert (receiver.attempts, receiver.keys) == (attempts, ["f1.escalated"]), "delivered once"


async def test_a_server_that_refuses_connections_is_tried_again_and_its_url_is_not_shown(receiver: Receiver) -> None:
    bed = DeliveryBed(receiver)
    bed.endpoint = Endpoint("http://127.0.0.1:9/token-in-path", TOKEN)
    async with bed.running():
        bed.add()
        await bed.advance(20.0)
        assert bed.outcomes
        assert all("token-in-path" not in str(each) and TOKEN not in str(each) for each in bed.outcomes)
        assert "sink tickets: the server cannot be reached" in str(bed.outcomes[0])
        bed.endpoint = Endpoint(receiver.url, TOKEN)
        await bed.advance(300.0)
    assert receiver.keys == ["f1.escalated"]


async def test_many_failures_at_once_are_limited_and_all_of_them_arrive(receiver: Receiver) -> None:
    bed = DeliveryBed(receiver)
    async with bed.running():
        for number in range(40):
            bed.add(number)
        await bed.advance(1.0, step_s=1.0)
        assert len(receiver.keys) <= 12, "a burst of ten, then one each two seconds"
        await bed.advance(120.0)
    assert sorted(receiver.keys) == sorted(f"f{number}.escalated" for number in range(40))


async def test_the_body_is_the_template_of_the_sink(receiver: Receiver) -> None:
    template = '{"event": "${event}", "text": "${cluster}/${module}: ${message}", "price": "$$5"}'
    await Webhooks(VirtualClock()).send(sink(template=template), Endpoint(receiver.url, TOKEN), notification())
    assert receiver.accepted == [{"event": "escalated", "text": "x/x: x", "price": "$5"}]


async def test_a_server_whose_certificate_is_not_accepted_is_named_with_the_cause() -> None:
    authority, other = Authority("one"), Authority("another")
    async with receiving(tls=authority.server_context()) as receiver:
        webhooks = Webhooks(VirtualClock())
        with pytest.raises(GovernorError, match="not accepted \\(unable to get local issuer certificate\\)") as found:
            await webhooks.send(sink(), Endpoint(receiver.url, TOKEN, other.certificate.decode()), notification())
        assert "127.0.0.1" not in str(found.value)
        assert receiver.attempts == 0
        await webhooks.send(sink(), Endpoint(receiver.url, TOKEN, authority.certificate.decode()), notification())
        assert receiver.keys == ["f1.escalated"]
