"""Whatever peers send, the engines do not raise, keep their counts consistent, and stay within their limits."""

import os
import random
import sys

import pytest

from governor.runtimeproxy.http2.byte_copy import ByteCopy
from governor.runtimeproxy.http2.frames import PREFACE
from governor.runtimeproxy.http2.relay import Relay
from governor.runtimeproxy.http2.streams import Peer
from tests.unit.runtimeproxy.http2.fuzzing import Sequence


def run_sequences(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().randrange(2**48))
    with capsys.disabled():
        sys.stdout.write(f"\n{count} sequences from FUZZ_SEED={seed} on\n")
    for number in range(seed, seed + count):
        try:
            Sequence(number, steps=60).run()
        except Exception as error:
            error.add_note(f"FUZZ_SEED={number} starts with this sequence")
            raise


def test_the_relay_survives_sequences_of_mutated_frames(capsys: pytest.CaptureFixture[str]) -> None:
    run_sequences(400, capsys)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_relay_survives_a_hundred_thousand_sequences_of_mutated_frames(capsys: pytest.CaptureFixture[str]) -> None:
    run_sequences(100_000, capsys)


@pytest.mark.parametrize("seed", range(50))
def test_random_bytes_only_close_the_connection(seed: int) -> None:
    rng = random.Random(seed)
    relay = Relay(lambda path: True)
    relay.attach(Peer.RUNTIME)
    for _ in range(20):
        relay.receive(rng.choice((Peer.CLIENT, Peer.RUNTIME)), rng.randbytes(rng.randrange(200)))
    assert relay.streams == 0
    relay.receive(Peer.CLIENT, bytes(100))
    relay.data_to_send(Peer.CLIENT)
    assert relay.should_close(Peer.CLIENT)


@pytest.mark.parametrize("seed", range(50))
def test_random_bytes_are_copied_verbatim_until_draining_and_never_raise(seed: int) -> None:
    rng = random.Random(seed)
    copy = ByteCopy()
    sent = dict.fromkeys((Peer.CLIENT, Peer.RUNTIME), b"")
    for _ in range(30):
        peer = rng.choice(tuple(sent))
        data = rng.randbytes(rng.randrange(100))
        sent[peer] += data
        copy.receive(peer, data)
    assert copy.data_to_send(Peer.RUNTIME) == sent[Peer.CLIENT]
    assert copy.data_to_send(Peer.CLIENT) == sent[Peer.RUNTIME]
    copy.drain()
    for _ in range(30):
        copy.receive(rng.choice(tuple(sent)), PREFACE + rng.randbytes(rng.randrange(100)))
