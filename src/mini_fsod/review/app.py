"""The server of the review page: the page itself, and what it asks for."""

from __future__ import annotations

import json
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from mini_fsod.errors import UserError
from mini_fsod.limits import BODY_BYTES
from mini_fsod.review.decisions import NotSaved
from mini_fsod.review.guard import Guard
from mini_fsod.review.items import DecisionRequests, Review

SCRIPTS = ("stage.js", "network.js", "page.js", "keys.js")
PORT = 8765  # the one to try first
SKIPPED = 500  # most items that a request for a page may leave out


def make_app(review: Review, token: str, host: str = "127.0.0.1") -> ASGIApp:
    """The page of a review, for those who know the token."""

    def page(request: Request) -> Response:
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
            "img-src blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        return HTMLResponse(page_html(nonce), headers={"content-security-policy": policy})

    def overview(request: Request) -> Response:
        return JSONResponse(review.overview())

    def items(request: Request) -> Response:
        asked = request.query_params
        item = _number(asked["item"]) if "item" in asked else None
        skip = [_number(word) for word in asked.get("skip", "").split(",") if word]
        return JSONResponse(review.page(asked.get("class"), item, skip[:SKIPPED]))

    def image(request: Request) -> Response:
        asked = request.query_params
        side = _number(asked.get("side", "1024"))
        content = review.jpeg(_number(request.path_params["item"]), side, asked.get("whole") == "1")
        return Response(content, media_type="image/jpeg")

    async def decide(request: Request) -> Response:
        asked = _requests(await _body(request))
        return JSONResponse(await run_in_threadpool(review.decide, asked.decisions))

    async def undo(request: Request) -> Response:
        await _body(request)
        return JSONResponse(await run_in_threadpool(review.undo))

    routes = [
        Route("/", page),
        Route("/api/overview", overview),
        Route("/api/page", items),
        Route("/api/image/{item}", image),
        Route("/api/decide", decide, methods=["POST"]),
        Route("/api/undo", undo, methods=["POST"]),
    ]
    handlers: dict[Any, Callable[..., Any]] = {
        NotSaved: _answer(507), UserError: _answer(422), HTTPException: _http_error,
    }  # fmt: skip
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, host)


def page_html(nonce: str) -> str:
    """The page as one file, with its style and scripts in it."""
    folder = files("mini_fsod.review")
    text = {
        name: (folder / name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", *SCRIPTS)
    }
    scripts = "\n".join(text[name] for name in SCRIPTS)
    page = text["page.html"].replace("/* style */", text["page.css"])
    return page.replace("/* scripts */", scripts).replace("NONCE", nonce)


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens; without a port, the usual one or any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for wanted in (port,) if port is not None else (PORT, 0):
        try:
            return socket.create_server((host, wanted), family=family)
        except OSError as error:
            reason = error.strerror or str(error)
    raise UserError(
        f"{host}:{port or PORT}: cannot listen there ({reason}).",
        "Choose another port with --port, or another address with --host.",
    )


def serve(app: ASGIApp, listening: socket.socket, announce: Callable[[], None]) -> None:
    """Announce the page, and answer requests until Ctrl-C or SIGTERM."""
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    server = _Server(config)
    server.announce = announce
    server.run(sockets=[listening])


class _Server(uvicorn.Server):
    announce: Callable[[], None]

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ends by itself: uvicorn would send the signal to the process again."""
        before = {s: signal.signal(s, self.handle_exit) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            self.announce()  # a signal from here on ends the server in order
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def _body(request: Request) -> Any:
    """The JSON of a request; at most BODY_BYTES are read, whatever its length says."""
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > BODY_BYTES:
            raise HTTPException(413, f"More than {BODY_BYTES >> 20} MB.")
    try:
        return json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise HTTPException(400, "Not JSON.") from None


def _refuse(word: str) -> None:
    raise ValueError(word)


def _requests(value: Any) -> DecisionRequests:
    try:
        return DecisionRequests.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))[:100]
        raise HTTPException(400, f"{where}: {first['msg']}") from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise HTTPException(400, "Not a number.")
    return int(text)


def _answer(status: int) -> Callable[[Request, Any], Response]:
    def answer(request: Request, error: UserError) -> Response:
        return JSONResponse({"error": error.what, "fix": error.fix}, status)

    return answer


def _http_error(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code)
