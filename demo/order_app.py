"""The order application of the proof of concept. It uses only Dapr's API on loopback.

``GET /order`` and ``POST /neworder`` with ``{"data": {"orderId": "foo"}}`` use the state store; the same paths below
``/redis-binding`` and ``/http-binding`` use output bindings. The sidecar's configuration decides where the data is.

    python -m demo.order_app --port 3000 --dapr-port 3500
"""

import argparse
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.Response]]

STATE_STORE = "statestore"
REDIS_BINDING = "orders-redis"
HTTP_BINDING = "orders-http"


class Sidecar:
    """Client of the application's Dapr sidecar."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._base = f"http://127.0.0.1:{port}/v1.0"

    async def load_state(self) -> Any:
        """Return the stored order, or None."""
        return await self._call("GET", f"/state/{STATE_STORE}/order")

    async def save_state(self, order: Any) -> None:
        """Store the order."""
        await self._call("POST", f"/state/{STATE_STORE}", [{"key": "order", "value": order}])

    async def load_by_redis(self) -> Any:
        """Return the order stored through the Redis binding, or None."""
        body = {"operation": "get", "metadata": {"key": "order"}}
        return _decoded(await self._call("POST", f"/bindings/{REDIS_BINDING}", body))

    async def save_by_redis(self, order: Any) -> None:
        """Store the order through the Redis binding."""
        body = {"operation": "create", "metadata": {"key": "order"}, "data": order}
        await self._call("POST", f"/bindings/{REDIS_BINDING}", body)

    async def load_by_http(self) -> Any:
        """Return the order stored through the HTTP binding, or None."""
        body = {"operation": "get", "metadata": {"path": "/order"}}
        return _decoded(await self._call("POST", f"/bindings/{HTTP_BINDING}", body))

    async def save_by_http(self, order: Any) -> None:
        """Store the order through the HTTP binding."""
        body = {"operation": "post", "metadata": {"path": "/order", "Content-Type": "application/json"}, "data": order}
        await self._call("POST", f"/bindings/{HTTP_BINDING}", body)

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        try:
            async with self._session.request(method, self._base + path, json=body) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise web.HTTPBadGateway(text=f"Dapr did not respond to {method} {path}: {error}\n") from error
        if answer.status >= 400:
            raise web.HTTPBadGateway(text=f"Dapr responded {answer.status} to {method} {path}: {text}\n")
        return json.loads(text) if text else None


def _decoded(value: Any) -> Any:
    """Parse the value of a binding that returns JSON as text."""
    if not isinstance(value, str):
        return value
    return json.loads(value) if value else None


def _reader(load: Callable[[], Awaitable[Any]]) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        order = await load()
        if order is None:
            raise web.HTTPNotFound(text="there is no order yet; POST one to /neworder\n")
        return web.json_response(order)

    return handle


def _writer(save: Callable[[Any], Awaitable[None]]) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        try:
            order = (await request.json())["data"]
        except (ValueError, KeyError, TypeError) as error:
            raise web.HTTPBadRequest(text='expected {"data": {"orderId": "..."}}\n') from error
        await save(order)
        return web.json_response(order)

    return handle


async def _alive(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def application(dapr_port: int) -> web.Application:
    """Return the web application that uses the sidecar at this port."""
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
    sidecar = Sidecar(session, dapr_port)
    routes = {
        "": (sidecar.load_state, sidecar.save_state),
        "/redis-binding": (sidecar.load_by_redis, sidecar.save_by_redis),
        "/http-binding": (sidecar.load_by_http, sidecar.save_by_http),
    }
    app = web.Application()
    app.router.add_get("/healthz", _alive)
    app.on_cleanup.append(lambda _: session.close())
    for prefix, (load, save) in routes.items():
        app.router.add_get(f"{prefix}/order", _reader(load))
        app.router.add_post(f"{prefix}/neworder", _writer(save))
    return app


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; in a pod, not loopback")
    parser.add_argument("--dapr-port", type=int, required=True, help="HTTP port of its sidecar")
    options = parser.parse_args()
    web.run_app(application(options.dapr_port), host=options.host, port=options.port, print=None)


if __name__ == "__main__":
    main()
