"""The server of the page: a fixed set of addresses below a secret one, for browsers on this machine."""

import ipaddress
import logging
import math
import re
import secrets
import socket
from collections.abc import Callable
from importlib import resources
from typing import Any, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ralseg.annotation.page.desk import Desk
from ralseg.errors import RalsegError

log = logging.getLogger(__name__)
FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
    **{
        f"{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
        for name in ("main", "api", "desk", "drafts", "editor", "hands", "paint", "panels", "view")
    },
}
"""What the browser is given: by address, the file and its type."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_T = TypeVar("_T", int, float)
LONGEST_NAME = 40
_LONGEST_NOTHING = 1024  # bytes of a body where none is needed


class Hosts:
    """The names under which the page may be asked for: a web page elsewhere that points its own name here is refused.

    Args:
        host: The address that the server listens at. Where that is any (``0.0.0.0``), all numeric addresses and this
            machine's own name are right: a name of somebody else's is still refused.

    Examples:
        >>> hosts = Hosts("127.0.0.1")
        >>> [hosts.knows(name) for name in ("127.0.0.1:8808", "localhost", "[::1]:8808", "evil.example", "")]
        [True, True, True, False, False]
    """

    def __init__(self, host: str) -> None:
        self.names = {"127.0.0.1", "localhost", "::1", host.lower()}
        self._takes_numbers = host in ("0.0.0.0", "::")
        if self._takes_numbers:
            self.names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def knows(self, header: str) -> bool:
        """Whether a Host header names this server."""
        found = re.fullmatch(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[a-z0-9.-]+))(?::\d{1,5})?", header.lower())
        if found is None:
            return False
        name = found["six"] or found["name"]
        return name in self.names or (self._takes_numbers and _is_number(name))


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """Lets requests through that name this server and know the token; the token is the first part of every address.

    Args:
        app: What lies behind.
        token: The secret.
        hosts: The names of this server.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Hosts) -> None:
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at a request before anything else does."""
        if scope["type"] != "http":
            return  # no page of ours opens anything else

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        await self.app({**scope, "path": self._parts(scope)[1]}, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        names = Headers(scope=scope).getlist("host")
        if len(names) != 1 or not self.hosts.knows(names[0]):
            return _error(400, "this server does not go by that name; open the address that `ralseg label` has printed")
        given, _ = self._parts(scope)
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return _error(403, "the address is not complete; open the one that `ralseg label` has printed")
        return None

    @staticmethod
    def _parts(scope: Scope) -> tuple[str, str]:
        """What is given for the token, and the address behind it."""
        first, slash, rest = str(scope["path"]).removeprefix("/").partition("/")
        return (first, f"/{rest}") if slash else ("", "/")


def make_app(desk: Desk, token: str, hosts: Hosts) -> ASGIApp:
    """The page as an ASGI application."""
    calls = Calls(desk)
    region = "/api/regions/{region}"
    routes = [
        *(Route(f"/{name}", _file(*file), methods=["GET"]) for name, file in FILES.items()),
        Route("/api/state", calls.state, methods=["GET"]),
        Route("/api/leave", calls.leave, methods=["POST"]),
        Route("/api/next", calls.next, methods=["POST"]),
        Route("/api/finish", calls.finish, methods=["POST"]),
        *(
            Route(f"{region}/{name}", calls.piece(make, kind), methods=["GET"])
            for name, (make, kind) in calls.pieces().items()
        ),
        Route(f"{region}/superpixels/{{level}}", calls.superpixels, methods=["GET"]),
        Route(f"{region}/open", calls.open, methods=["POST"]),
        Route(f"{region}/claim", calls.claim, methods=["POST"]),
        Route(f"{region}/skip", calls.skip, methods=["POST"]),
        Route(f"{region}/mask", calls.save, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {HTTPException: _on_refusal, RalsegError: _on_ralseg, Exception: _on_surprise}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.state.desk = desk
    return Guard(app, token, hosts)


class Calls:
    """What each address does; everything that may take time is done in a thread.

    Args:
        desk: Does it.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def state(self, request: HttpRequest) -> Response:
        """Everything around the picture."""
        page = request.query_params.get("page", "")[:LONGEST_NAME]
        return JSONResponse(await run_in_threadpool(self.desk.state, _who(request), page))

    async def leave(self, request: HttpRequest) -> Response:
        """A page is closed."""
        self.desk.leave(request.query_params.get("page", "")[:LONGEST_NAME])
        return JSONResponse({})

    async def next(self, request: HttpRequest) -> Response:
        """The next region, claimed; null where there is none."""
        await _body(request, _LONGEST_NOTHING)
        return JSONResponse({"region": await run_in_threadpool(self.desk.next_for, _somebody(request))})

    async def finish(self, request: HttpRequest) -> Response:
        """The model shall go on with what is there."""
        await run_in_threadpool(self.desk.finish, _somebody(request))
        return JSONResponse({})

    async def open(self, request: HttpRequest) -> Response:
        """A certain region."""
        return JSONResponse(await run_in_threadpool(self.desk.open, _region(request), _somebody(request)))

    async def claim(self, request: HttpRequest) -> Response:
        """Keep a region a while longer."""
        yours = await run_in_threadpool(self.desk.claim, _region(request), _somebody(request))
        return JSONResponse({"yours": yours})

    async def skip(self, request: HttpRequest) -> Response:
        """Put a region off."""
        await run_in_threadpool(self.desk.skip, _region(request), _somebody(request))
        return JSONResponse({})

    async def save(self, request: HttpRequest) -> Response:
        """A mask: one byte a pixel, row by row."""
        region, who = _region(request), _somebody(request)
        wanted = await run_in_threadpool(self.desk.wanted, region)
        about = {
            "who": who,
            "seconds": _number(request, "seconds", float),
            "clicks": _number(request, "clicks", int),
            "blind": request.query_params.get("blind") == "1",
        }
        expected = wanted.width * wanted.height
        content = await _body(request, expected)
        if len(content) != expected:
            raise HTTPException(
                400, f"the mask has {len(content)} bytes, but the region {wanted.width} x {wanted.height} pixels"
            )
        mask = np.frombuffer(content, np.uint8).reshape(wanted.shape)
        version = await run_in_threadpool(lambda: self.desk.save(region, mask, **about))
        return JSONResponse({"version": version})

    async def superpixels(self, request: HttpRequest) -> Response:
        """Patches of a region."""
        return _bytes(await run_in_threadpool(self.desk.patches, _region(request), _path_number(request, "level")))

    def pieces(self) -> dict[str, tuple[Callable[[HttpRequest], bytes], str]]:
        """What there is of each region, by the end of its address, and its type."""
        desk, plain = self.desk, "application/octet-stream"
        return {
            "view.png": (lambda request: desk.view(_region(request)), "image/png"),
            "image.jpg": (lambda request: desk.overview(_region(request)), "image/jpeg"),
            "thumbnail.png": (lambda request: desk.thumbnail(_region(request)), "image/png"),
            "start": (
                lambda request: desk.start(_region(request), request.query_params.get("blind") == "1").tobytes(),
                plain,
            ),
            "prediction": (lambda request: desk.prediction(_region(request)).tobytes(), plain),
            "inside": (lambda request: desk.inside(_region(request)).tobytes(), plain),
        }

    def piece(self, make: Callable[[HttpRequest], bytes], kind: str) -> Callable[[HttpRequest], Any]:
        """An address that gives a part of a region."""

        async def give(request: HttpRequest) -> Response:
            return _bytes(await run_in_threadpool(make, request), kind)

        return give


def _file(name: str, kind: str) -> Callable[[HttpRequest], Response]:
    """An address that gives one of the page's own files."""
    content = resources.files("ralseg.annotation.page").joinpath("static", name).read_bytes()
    return lambda request: Response(content, media_type=kind)


def _bytes(content: bytes, kind: str = "application/octet-stream") -> Response:
    return Response(content, media_type=kind)


def _region(request: HttpRequest) -> int:
    """The region that an address names: one that was asked for, which is all that a page may see."""
    region, desk = _path_number(request, "region"), request.app.state.desk
    if not desk.knows(region):
        raise HTTPException(404, f"region {region} was never asked for")
    return region


def _path_number(request: HttpRequest, key: str) -> int:
    text = str(request.path_params[key])
    if not re.fullmatch("[0-9]{1,9}", text):
        raise HTTPException(404)
    return int(text)


def _who(request: HttpRequest) -> str:
    """The annotator's name; it goes into the journal as it is, so it must be one line of text."""
    name = request.query_params.get("who", "").strip()
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise HTTPException(400, f"a name has at most {LONGEST_NAME} letters, in one line")
    return name


def _somebody(request: HttpRequest) -> str:
    name = _who(request)
    if not name:
        raise HTTPException(400, "who are you? Give your name first")
    return name


def _number(request: HttpRequest, key: str, kind: type[_T]) -> _T | None:
    """A number that a page may send along; None where it does not."""
    text = request.query_params.get(key)
    if text is None:
        return None
    try:
        value = kind(text)
    except ValueError:
        raise HTTPException(400, f"{key}={text[:20]!r} is not a number") from None
    if not math.isfinite(value) or not 0 <= value < 1e7:
        raise HTTPException(400, f"{key}={text[:20]!r} cannot be right")
    return value


async def _body(request: HttpRequest, most: int) -> bytes:
    """What was sent along; what is too long is not even read."""
    parts, length = [], 0
    async for part in request.stream():
        length += len(part)
        if length > most:
            raise HTTPException(413, f"more than {most} bytes were sent; nothing was saved")
        parts.append(part)
    return b"".join(parts)


def _error(status: int, text: str) -> JSONResponse:
    # after a refusal the line is closed: else all that is still being sent would be taken in, and thrown away
    return JSONResponse({"error": text}, status, {"Connection": "close"})


async def _on_refusal(request: HttpRequest, error: HTTPException) -> Response:
    texts = {"Not Found": "there is no such address", "Method Not Allowed": "that cannot be done with this address"}
    return _error(error.status_code, texts.get(error.detail, error.detail))


async def _on_ralseg(request: HttpRequest, error: RalsegError) -> Response:
    return _error(400, str(error))


async def _on_surprise(request: HttpRequest, error: Exception) -> Response:
    log.error("the page met an error that nobody expected", exc_info=error)
    return _error(500, "something went wrong inside ralseg; its terminal says what. What you drew is still here")
