"""Faults of a plugin in responding to a hook request, one function each."""

from governor.wire.hooks.hooks_pb2 import LinuxContainerResources, PodSandboxHookResponse
from testbed.cri.misbehaving_plugin import DONE, HEAD, Handler, HookCall

MIB = 1024 * 1024
CHANGE = PodSandboxHookResponse(annotations={"by": "misbehaving"}).SerializeToString()
OUT_OF_RANGE = PodSandboxHookResponse(resources=LinuxContainerResources(cpu_shares=-5)).SerializeToString()


async def answer_well(call: HookCall) -> None:
    await call.answer(CHANGE)


async def never_answer(call: HookCall) -> None:
    await call.reset.wait()


async def abort_at_once(call: HookCall) -> None:
    call.abort()


async def abort_within_the_response(call: HookCall) -> None:
    await call.write(call.head(), *call.data(b"\0\0\0\x01\x00", CHANGE))
    call.abort()


async def stop_within_the_response(call: HookCall) -> None:
    await call.write(call.head(), *call.data(b"\0\0\0\x01\x00", CHANGE))


async def end_within_the_message(call: HookCall) -> None:
    await call.write(call.head(), *call.data(b"\0\0\0\x01\x00", CHANGE), call.end())


async def answer_without_a_message(call: HookCall) -> None:
    await call.write(call.head(), call.end())


async def answer_without_a_status(call: HookCall) -> None:
    await call.write(call.head(), *call.data(b"\0", len(CHANGE).to_bytes(4), CHANGE), call.end([("x-y", "z")]))


async def answer_twice(call: HookCall) -> None:
    message = b"\0" + len(CHANGE).to_bytes(4) + CHANGE
    await call.write(call.head(), *call.data(message, message), call.end())


async def answer_with_an_unknown_compression(call: HookCall) -> None:
    await call.write(call.head([*HEAD, ("grpc-encoding", "own")]), *call.data(b"\1\0\0\0\1x"), call.end())


async def answer_as_a_web_server(call: HookCall) -> None:
    await call.write(call.head([(":status", "503"), ("content-type", "text/html")]), call.end(DONE))


async def answer_garbage(call: HookCall) -> None:
    await call.answer(b"\xff\xff\xff")


async def answer_out_of_range(call: HookCall) -> None:
    await call.answer(OUT_OF_RANGE)


async def speak_no_http2(call: HookCall) -> None:
    await call.write(bytes(1000))


async def answer_more_than_windows_allow(call: HookCall) -> None:
    await call.write(call.head(), *call.data(b"\0\x04\0\0\0", bytes(64 * MIB)), call.end())


async def begin_headers_that_never_end(call: HookCall) -> None:
    endless = call.head()
    endless.flags.discard("END_HEADERS")
    await call.write(endless)
    for _ in range(8 * 1024):
        await call.write(call.continuation())


FAULTS: list[Handler] = [
    abort_at_once,
    abort_within_the_response,
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
