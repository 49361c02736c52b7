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
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..page.build import ASSETS
from .connection import MOST, Connection
from .inputs import line
from .runs import Runs
from .study import BadQuestion, Study

OWN_ASSETS = Path(__file__).parent / "assets"
VIEWS = ("heat", "pictures", "usage", "clusters", "input", "growth", "drift", "model")
STYLES = (ASSETS / "page.css", OWN_ASSETS / "model.css")
SCRIPTS = (
    OWN_ASSETS / "start.js",
    *(ASSETS / f"{name}.js" for name in ("dom", "paint")),
    *(OWN_ASSETS / f"{name}.js" for name in VIEWS),
)
"""Some are those of the page that needs no server."""
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


class TokenMiddleware:
    """Lets a request pass if it has the token and names this server; else it gets one clear error."""

    def __init__(self, app: ASGIApp, token: str, host: str, port: int) -> None:
        self.app, self.token, self.host, self.port = app, token.encode(), host, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token, path = f"/{self.token.decode()}", scope["path"]
        if problem := self._problem(path, Headers(scope=scope)):
            await JSONResponse({"error": problem}, 403, HEADERS)(scope, receive, send)
        elif path == token:
            await RedirectResponse(f"{token}/", 307, HEADERS)(scope, receive, send)
        else:
            path = path.removeprefix(token)
            inner = {**scope, "path": path, "raw_path": path.encode("utf-8", "surrogateescape"), "root_path": ""}
            await self.app(inner, receive, send)

    def _problem(self, path: str, headers: Headers) -> str:
        name, port = split_host(headers.get("host", ""))
        if not known_host(name, self.host) or (port or "80") != str(self.port):  # clients omit 80
            return "this server answers only under the address that it printed"
        token = path.split("/")[1] if path.startswith("/") else ""
        if not secrets.compare_digest(token.encode("utf-8", "surrogateescape"), self.token):
            return "the token in the address is missing or wrong: use the address that the server printed"
        origin = headers.get("origin")
        if origin is not None and origin.partition("//")[2] != headers["host"]:
            return "requests from other pages are refused"
        return ""


def whole(request: Request, name: str) -> int:
    """A whole number in the query."""
    text = request.query_params.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise BadQuestion(f"{name} must be a whole number, got {text[:40]!r}")
    return int(text)


def share(request: Request, name: str) -> float:
    """A number from 0 to 1 in the query; 0 without one."""
    text = request.query_params.get(name, "0")
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(text)) <= 1:
            return value
    raise BadQuestion(f"{name} must be a number from 0 to 1, got {text[:40]!r}")


def joined(paths: Sequence[Path]) -> bytes:
    """The content of several files."""
    return b"\n".join(path.read_bytes() for path in paths)


def build(study: Study, runs: Runs | None = None) -> Starlette:
    """The application behind the token. It answers GET requests only."""

    @cache
    def described(place: int) -> bytes:
        return json.dumps(study.layer(place)).encode()

    def layer(request: Request) -> Response:
        return Response(described(whole(request, "place")), 200, HEADERS, "application/json")

    def inspect(request: Request) -> Response:
        other = whole(request, "other") if "other" in request.query_params else None
        place, index = whole(request, "layer"), whole(request, "index")
        return JSONResponse(study.inspect(place, index, other, share(request, "way")), 200, HEADERS)

    def run(request: Request) -> Response:
        place = whole(request, "place")
        if runs is None:
            raise HTTPException(404, "there are no runs: start with --runs FOLDER")
        return JSONResponse(runs.run(place), 200, HEADERS)

    async def refused(request: Request, error: Any) -> Response:
        problem = getattr(error, "detail", str(error))
        return JSONResponse({"error": problem}, getattr(error, "status_code", 400), HEADERS)

    async def broken(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": f"the server failed: {line(error)}"}, 500, HEADERS)

    first = {**study.summary(), "runs": [] if runs is None else runs.summary()}
    fixed = {
        "/": Response((OWN_ASSETS / "model.html").read_bytes(), 200, HEADERS, "text/html"),
        "/page.css": Response(joined(STYLES), 200, HEADERS, "text/css"),
        "/page.js": Response(joined(SCRIPTS), 200, HEADERS, "text/javascript"),
        "/api/summary": JSONResponse(first, 200, HEADERS),
    }
    app = Starlette(
        routes=[
            *(Route(path, answer, methods=["GET"]) for path, answer in fixed.items()),
            *(Route(f"/api/{answer.__name__}", answer) for answer in (layer, inspect, run)),
        ],
        exception_handlers={BadQuestion: refused, HTTPException: refused, 500: broken},
    )
    app.router.redirect_slashes = False
    return app


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0: any free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server((host, port), family=family, backlog=MOST, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"--host {host} --port {port} cannot be used: {error}") from None


def keep_log_record(record: logging.LogRecord) -> bool:
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
            TokenMiddleware(app, self.token, host, self.port),
            http=Connection,
            backlog=MOST,
            log_level="error",
            access_log=False,  # it would show the token
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        logging.getLogger("uvicorn.error").addFilter(keep_log_record)
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
