"""Faults of a plugin in responding to a hook request, one function each."""

from governor.wire.hooks.hooks_pb2 import LinuxContainerResources, PodSandboxHookResponse
from testbed.cri.rude_plugin import DONE, HEAD, Act, Asked

MIB = 1024 * 1024
CHANGE = PodSandboxHookResponse(annotations={"by": "rude"}).SerializeToString()
OUT_OF_RANGE = PodSandboxHookResponse(resources=LinuxContainerResources(cpu_shares=-5)).SerializeToString()


async def answer_well(asked: Asked) -> None:
    await asked.answer(CHANGE)


async def never_answer(asked: Asked) -> None:
    await asked.given_up.wait()


async def break_off_at_once(asked: Asked) -> None:
    asked.break_off()


async def break_off_within_the_response(asked: Asked) -> None:
    await asked.write(asked.head(), *asked.data(b"\0\0\0\x01\x00", CHANGE))
    asked.break_off()


async def stop_within_the_response(asked: Asked) -> None:
    await asked.write(asked.head(), *asked.data(b"\0\0\0\x01\x00", CHANGE))


async def end_within_the_message(asked: Asked) -> None:
    await asked.write(asked.head(), *asked.data(b"\0\0\0\x01\x00", CHANGE), asked.end())


async def answer_without_a_message(asked: Asked) -> None:
    await asked.write(asked.head(), asked.end())


async def answer_without_a_status(asked: Asked) -> None:
    await asked.write(asked.head(), *asked.data(b"\0", len(CHANGE).to_bytes(4), CHANGE), asked.end([("x-y", "z")]))


async def answer_twice(asked: Asked) -> None:
    message = b"\0" + len(CHANGE).to_bytes(4) + CHANGE
    await asked.write(asked.head(), *asked.data(message, message), asked.end())


async def answer_with_an_unknown_compression(asked: Asked) -> None:
    await asked.write(asked.head([*HEAD, ("grpc-encoding", "own")]), *asked.data(b"\1\0\0\0\1x"), asked.end())


async def answer_as_a_web_server(asked: Asked) -> None:
    await asked.write(asked.head([(":status", "503"), ("content-type", "text/html")]), asked.end(DONE))


async def answer_garbage(asked: Asked) -> None:
    await asked.answer(b"\xff\xff\xff")


async def answer_out_of_range(asked: Asked) -> None:
    await asked.answer(OUT_OF_RANGE)


async def speak_no_http2(asked: Asked) -> None:
    await asked.write(bytes(1000))


async def answer_more_than_windows_allow(asked: Asked) -> None:
    await asked.write(asked.head(), *asked.data(b"\0\x04\0\0\0", bytes(64 * MIB)), asked.end())


async def begin_headers_that_never_end(asked: Asked) -> None:
    endless = asked.head()
    endless.flags.discard("END_HEADERS")
    await asked.write(endless)
    for _ in range(8 * 1024):
        await asked.write(asked.more_fields())


FAULTS: list[Act] = [
    break_off_at_once,
    break_off_within_the_response,
    stop_within_the_response,
    end_within_the_message,
    answer_without_a_message,
    answer_without_a_status,
    answer_twice,
    answer_with_an_unknown_compression,
    answer_as_a_web_server,
    answer_garbage,
    answer_out_of_range,
    speak_no_http2,
    answer_more_than_windows_allow,
    begin_headers_that_never_end,
    never_answer,
]
