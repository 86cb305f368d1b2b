"""An external order service with an HTTP API, the target of the HTTP binding.

It stands for a service outside Dapr, so it stores its orders in Redis directly.

    ORDER_DESK_REDIS_PASSWORD=... python -m demo.order_desk --port 4000 --redis-port 6379
"""

import argparse
import os

from aiohttp import web

from testbed.redis import execute

KEY = "order-desk"


def application(redis_port: int, password: str) -> web.Application:
    """Return the web application with ``GET /order`` and ``POST /order``."""

    async def get(_: web.Request) -> web.Response:
        order = await execute(redis_port, password, "GET", KEY)
        return web.Response(text=str(order or "null"), content_type="application/json")

    async def post(request: web.Request) -> web.Response:
        await execute(redis_port, password, "SET", KEY, await request.text())
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
    desk = application(options.redis_port, os.environ["ORDER_DESK_REDIS_PASSWORD"])
    web.run_app(desk, host="127.0.0.1", port=options.port, print=None)


if __name__ == "__main__":
    main()
