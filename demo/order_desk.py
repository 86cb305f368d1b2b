"""An external order service with its own HTTP API, kept in one Redis: what the HTTP binding reaches.

It stands for a service outside of Dapr, so it speaks to Redis directly (RESP, two commands).

    ORDER_DESK_REDIS_PASSWORD=... python -m demo.order_desk --port 4000 --redis-port 6379
"""

import argparse
import asyncio
import contextlib
import os

from aiohttp import web

KEY = "order-desk"


class RedisConnection:
    """One short conversation with Redis per command; the desk is not busy."""

    def __init__(self, port: int, password: str) -> None:
        self._port = port
        self._password = password

    async def command(self, *words: str) -> str | None:
        """Run one command after AUTH; the answer's text, or None for nil."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            for line in (("AUTH", self._password), words):
                writer.write(_request(*line))
                answer = await _answer(reader)
            return answer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def _request(*words: str) -> bytes:
    parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
    return f"*{len(words)}\r\n{''.join(parts)}".encode()


async def _answer(reader: asyncio.StreamReader) -> str | None:
    line = (await reader.readline()).decode().rstrip("\r\n")
    if line.startswith("-"):
        raise web.HTTPBadGateway(text=f"Redis answered {line[1:].split(':')[0]}\n")
    if not line.startswith("$"):
        return line[1:]
    size = int(line[1:])
    return None if size < 0 else (await reader.readexactly(size + 2))[:-2].decode()


def application(redis: RedisConnection) -> web.Application:
    """``GET /order`` and ``POST /order``."""

    async def get(_: web.Request) -> web.Response:
        text = await redis.command("GET", KEY)
        return web.Response(text=text or "null", content_type="application/json")

    async def post(request: web.Request) -> web.Response:
        await redis.command("SET", KEY, await request.text())
        return web.Response(status=204)

    app = web.Application()
    app.router.add_get("/order", get)
    app.router.add_post("/order", post)
    return app


def main() -> None:
    """Serve on loopback until stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--redis-port", type=int, required=True)
    options = parser.parse_args()
    redis = RedisConnection(options.redis_port, os.environ["ORDER_DESK_REDIS_PASSWORD"])
    web.run_app(application(redis), host="127.0.0.1", port=options.port, print=None)


if __name__ == "__main__":
    main()
