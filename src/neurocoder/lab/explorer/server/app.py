"""The explorer's server: a page about a model of one's own, for whoever has its address.

It listens on this machine only, unless it is told otherwise. Every request needs the token in the address and a Host
header that names this server, so that no other page in the same browser can reach it. It reads no files for a request
and writes none.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from ..page.build import ASSETS
from .inputs import line
from .runs import Runs
from .study import Refused, Study

OWN_ASSETS = Path(__file__).parent / "assets"
STYLES = (ASSETS / "page.css", OWN_ASSETS / "model.css")
SCRIPTS = (
    OWN_ASSETS / "start.js",
    *(ASSETS / f"{name}.js" for name in ("dom", "paint")),
    *(
        OWN_ASSETS / f"{name}.js"
        for name in ("heat", "pictures", "usage", "clusters", "input", "growth", "drift", "model")
    ),
)
MOST_BYTES = 64 * 1024
"""In the body of a request."""
MOST_DRAINED, DRAINING_SECONDS = 256 * 1024 * 1024, 10
"""Of a body that is refused: bytes and seconds after which the connection is cut."""
BODY_SECONDS = 10
"""For a body to arrive."""
LOCAL = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


def known_host(name: str, host: str) -> bool:
    """Whether a request's Host header, without its port, names this server.

    A page elsewhere can make its own domain name lead to this machine (DNS rebinding); it cannot use these names.
    """
    name = name.strip("[]").lower()
    if name in (host.lower(), "localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return host not in LOCAL and name in (socket.gethostname().lower(), socket.getfqdn().lower())
    return address.is_loopback if host in LOCAL else True


def split_host(header: str) -> tuple[str, str]:
    """Name and port of a Host header."""
    name, colon, port = header.rpartition(":")
    return (name, port) if colon and not port.endswith("]") else (header, "")


class Guard:
    """Lets a request pass if it has the token, names this server and is small; else it gets one clear error."""

    def __init__(self, app: Any, token: str, host: str, port: int) -> None:
        self.app, self.token, self.host, self.port = app, token.encode(), host, port

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        status, problem = self._problem(scope["path"], headers)
        body = b""
        if not status:
            problem = f"the body of the request did not arrive within {BODY_SECONDS} seconds"
            status = 408
            with anyio.move_on_after(BODY_SECONDS):
                body, status, problem = await _body(receive, headers)
        if status:
            if status != 408:
                await _drain(receive, headers)
            closing = {**HEADERS, "connection": "close"}
            await JSONResponse({"error": problem}, status, closing)(scope, receive, send)
            return
        path = scope["path"].removeprefix(f"/{self.token.decode()}")
        if not path:
            await RedirectResponse(f"/{self.token.decode()}/", 307, HEADERS)(scope, receive, send)
            return
        inner = {**scope, "path": path, "raw_path": path.encode("utf-8", "surrogateescape"), "root_path": ""}

        async def replay() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(inner, replay, send)

    def _problem(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        name, port = split_host(headers.get("host", ""))
        if not known_host(name, self.host) or (port or "80") != str(self.port):  # clients omit 80
            return 403, "this server answers only under the address that it printed"
        token = path.split("/")[1] if path.startswith("/") else ""
        if not secrets.compare_digest(token.encode("utf-8", "surrogateescape"), self.token):
            return 403, "the token in the address is missing or wrong: use the address that the server printed"
        origin = headers.get("origin")
        if origin is not None and origin.partition("//")[2] != headers["host"]:
            return 403, "requests from other pages are refused"
        return 0, ""


async def _body(receive: Receive, headers: dict[str, str]) -> tuple[bytes, int, str]:
    """The body of a request; or a status and what is wrong."""
    told = headers.get("content-length", "0")
    large = 413, f"a request may have at most {MOST_BYTES:,} bytes"
    if told.isdecimal() and int(told) > MOST_BYTES:
        return b"", *large
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"", 400, "the request ended early"
        body += message.get("body", b"")
        if len(body) > MOST_BYTES:
            return b"", *large
        if not message.get("more_body"):
            return body, 0, ""


async def _drain(receive: Receive, headers: dict[str, str]) -> None:
    """Read on without keeping anything, for a while: a client that is still sending would not see the answer."""
    left = 0 if "expect" in headers else MOST_DRAINED
    if "content-length" not in headers and "transfer-encoding" not in headers:
        return
    with anyio.move_on_after(DRAINING_SECONDS):
        while left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                return


def whole(request: Request, name: str) -> int:
    """A whole number in the query."""
    text = request.query_params.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise HTTPException(400, f"{name} must be a whole number, got {text[:40]!r}")
    return int(text)


def build(study: Study, runs: Runs | None = None) -> Starlette:
    """The application behind the guard."""
    page = (OWN_ASSETS / "model.html").read_bytes()
    style = b"\n".join(path.read_bytes() for path in STYLES)
    script = b"\n".join(path.read_bytes() for path in SCRIPTS)
    first = {**study.summary(), "runs": [] if runs is None else runs.summary()}
    summary = json.dumps(first).encode()
    known: dict[int, bytes] = {}

    def fixed(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return Response(content, 200, HEADERS, media_type=kind)

        return answer

    def describe(place: int) -> bytes:
        study.find(place)
        with study.lock:
            if place not in known:
                known[place] = json.dumps(study.layer(place)).encode()
            return known[place]

    async def layer(request: Request) -> Response:
        content = await run_in_threadpool(describe, whole(request, "place"))
        return Response(content, 200, HEADERS, media_type="application/json")

    async def inspect(request: Request) -> Response:
        try:
            question = json.loads(await request.body())
        except (ValueError, RecursionError):
            raise HTTPException(400, "the body must be JSON") from None
        return JSONResponse(await run_in_threadpool(study.inspect, question), 200, HEADERS)

    async def run(request: Request) -> Response:
        place = whole(request, "place")
        if runs is None:
            raise HTTPException(404, "there are no runs: start with --runs FOLDER")
        return JSONResponse(await run_in_threadpool(runs.run, place), 200, HEADERS)

    async def refused(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, 400, HEADERS)

    async def failed(request: Request, error: Exception) -> Response:
        told = error.detail if isinstance(error, HTTPException) else "not found"
        status = error.status_code if isinstance(error, HTTPException) else 404
        return JSONResponse({"error": told}, status, HEADERS)

    async def broken(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": f"the server failed: {line(error)}"}, 500, HEADERS)

    app = Starlette(
        routes=[
            Route("/", fixed(page, "text/html; charset=utf-8")),
            Route("/page.css", fixed(style, "text/css; charset=utf-8")),
            Route("/page.js", fixed(script, "text/javascript; charset=utf-8")),
            Route("/api/summary", fixed(summary, "application/json")),
            Route("/api/layer", layer),
            Route("/api/inspect", inspect, methods=["POST"]),
            Route("/api/run", run),
        ],
        exception_handlers={Refused: refused, HTTPException: failed, 500: broken},
    )
    app.router.redirect_slashes = False
    return app


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0: any free one."""
    try:
        kind = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with contextlib.ExitStack() as stack:
            found = stack.enter_context(socket.socket(kind, socket.SOCK_STREAM))
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((host, port))
            found.listen(128)
            stack.pop_all()
    except (OSError, UnicodeError) as error:
        raise ValueError(f"--host {host} --port {port} cannot be used: {error}") from None
    return found


def told(record: logging.LogRecord) -> bool:
    """Whether a message of uvicorn is shown: not that a request was cut off at the end."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, asyncio.CancelledError) and "timeout graceful shutdown" not in str(record.msg)


class Server:
    """The page of a study at an address with a random token."""

    def __init__(self, study: Study, runs: Runs | None = None, host: str = "127.0.0.1", port: int = 0) -> None:
        app = build(study, runs)
        self.socket = listening(host, port)
        self.host, self.port = host, int(self.socket.getsockname()[1])
        self.token = secrets.token_urlsafe(24)
        config = uvicorn.Config(
            Guard(app, self.token, host, self.port),
            log_level="error",
            access_log=False,  # it would show the token
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        logging.getLogger("uvicorn.error").addFilter(told)
        self.uvicorn = uvicorn.Server(config)

    @property
    def address(self) -> str:
        """What to open in a browser; where it listens on all addresses, with the name of this machine."""
        host = socket.gethostname() if self.host in ("", "0.0.0.0", "::") else self.host
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{self.port}/{self.token}/"

    def run(self) -> None:
        """Serve until interrupted."""
        try:
            self.uvicorn.run(sockets=[self.socket])
        finally:
            self.socket.close()
