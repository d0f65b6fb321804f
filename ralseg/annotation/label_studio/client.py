"""Plain HTTP to a Label Studio server: who may ask, what is tried again, and what is said when it goes wrong."""

import ipaddress
import json
import logging
import secrets
import time
from collections.abc import Iterator
from http.client import HTTPException, IncompleteRead
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from ralseg.errors import ConfigError, DataError

log = logging.getLogger(__name__)
_LARGEST = 256 * 2**20  # bytes of an answer: masks are long, but nothing that is asked for here is longer
_AGAIN = (429, 500, 502, 503, 504)
_NEVER_ARRIVED = (429, 503)  # what was sent was not looked at, so that sending it again makes nothing twice
_LONGEST_PAUSE = 30.0
_PAGE = 500


class LabelStudioError(DataError):
    """The server does not answer, or not as it should. Nothing is lost: the same command goes on.

    Args:
        message: What is wrong.
        status: The server's answer in numbers, 404 for example; None where there was none.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class LabelStudioClient:
    """Asks a Label Studio server. What fails by chance is asked again, a limited number of times.

    The token goes into one header and nowhere else: redirections are not followed, since they would carry it to
    another address, and messages never have it.

    Args:
        url: Where the server is, ``http://127.0.0.1:8080`` for example.
        token: An access token of a user: a legacy one, or a personal one.
        timeout: Seconds to wait for an answer.
        retries: How many times a question is asked again.
        pause: Seconds before the second try; twice as many before each further one.

    Examples:
        >>> LabelStudioClient("http://127.0.0.1:8080/", "0123abcd").url
        'http://127.0.0.1:8080'
    """

    def __init__(self, url: str, token: str, timeout: float = 60.0, retries: int = 5, pause: float = 1.0) -> None:
        self.url = checked_url(url)
        if not token.isascii() or not token.isprintable() or " " in token or not token:
            raise ConfigError("the token of Label Studio is no token: copy it anew from the page 'Account & Settings'")
        self._token, self._access = token, ""
        self._timeout, self.retries, self._pause = timeout, retries, pause
        self._opener = _opener(self.url)

    # -- questions --------------------------------------------------------------------------------

    def get(self, path: str, **query: str | int) -> Any:
        """The answer to a question."""
        return self._parsed(path, self._ask("GET", f"{path}?{urlencode(query)}" if query else path))

    def entries(self, path: str, **query: str | int) -> list[dict[str, Any]]:
        """The answer to a question for a list."""
        answer = self.get(path, **query)
        return [entry for entry in answer if isinstance(entry, dict)] if isinstance(answer, list) else []

    def post(self, path: str, content: Any) -> Any:
        """Make something. Not tried again where it may have been made already: look for it first, the next time."""
        return self._parsed(path, self._ask("POST", path, json.dumps(content).encode()))

    def patch(self, path: str, content: Any) -> Any:
        """Change something."""
        return self._parsed(path, self._ask("PATCH", path, json.dumps(content).encode()))

    def delete(self, path: str) -> None:
        """Take something away."""
        self._ask("DELETE", path)

    def serves(self, path: str) -> bool:
        """Whether the server shows a file; False where there is none, or none that it may show."""
        try:
            self._ask("GET", path)
        except LabelStudioError as error:
            if error.status != 404:
                raise
            return False
        return True

    def pages(self, path: str, key: str, **query: str | int) -> Iterator[dict[str, Any]]:
        """All entries of a list that comes in pages, under ``key``."""
        number, seen = 1, 0
        while True:
            page = self.get(path, **query, page=number, page_size=_PAGE)
            entries = _field(page, key, list)
            yield from (entry for entry in entries if isinstance(entry, dict))
            seen, number = seen + len(entries), number + 1
            total = page.get("total", page.get("count", 0))
            if not entries or not isinstance(total, int) or seen >= total:  # a page after the last one is a 404
                return

    def upload(self, project: int, name: str, content: bytes) -> str:
        """Give the server a file to show; the address that tasks name it by."""
        boundary = secrets.token_hex(16)
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        body = head.encode() + b"Content-Type: image/png\r\n\r\n" + content + f"\r\n--{boundary}--\r\n".encode()
        path = f"/api/projects/{project}/import?commit_to_project=false"
        made = self._parsed(path, self._ask("POST", path, body, f"multipart/form-data; boundary={boundary}"))
        ids = _field(made, "file_upload_ids", list)
        if len(ids) != 1 or not isinstance(ids[0], int):
            raise LabelStudioError(f"{self.url}: did not take the file {name}")
        file: str = _field(self.get(f"/api/import/file-upload/{ids[0]}"), "file", str)
        return f"/data/{file}"

    # -- how --------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        """Ask until there is an answer, or until it is no use."""
        for trial in range(self.retries + 1):
            try:
                return self._ask_once(method, path, body, kind)
            except (OSError, HTTPException) as error:  # an HTTPError is an OSError
                may_repeat, problem = self._judged(method, path, error)
            if not may_repeat or trial == self.retries:
                break
            log.warning("%s: no answer (try %d of %d)", self.url, trial + 1, self.retries + 1)
            time.sleep(min(self._pause * 2**trial, _LONGEST_PAUSE))
        raise problem

    def _judged(self, method: str, path: str, error: Exception) -> tuple[bool, Exception]:
        """Whether to ask again, and what is said otherwise."""
        if isinstance(error, HTTPError):
            return error.code in (_NEVER_ARRIVED if method == "POST" else _AGAIN), self._refusal(method, path, error)
        reason = error.reason if isinstance(error, URLError) else error
        return method != "POST" or isinstance(reason, ConnectionRefusedError), self._away(reason)

    def _ask_once(self, method: str, path: str, body: bytes | None, kind: str) -> bytes:
        try:
            return self._send(method, path, body, kind, self._authorization())
        except HTTPError as error:
            if error.code != 401 or not self._is_personal:
                raise
            error.close()
        self._access = ""  # it is valid for minutes only
        return self._send(method, path, body, kind, self._authorization())

    def _send(self, method: str, path: str, body: bytes | None, kind: str, authorization: str | None) -> bytes:
        headers = {"Accept": "application/json"}
        if authorization is not None:
            headers["Authorization"] = authorization
        if body is not None:
            headers["Content-Type"] = kind
        request = Request(self.url + path, body, headers, method=method)
        with self._opener.open(request, timeout=self._timeout) as response:
            data: bytes = response.read(_LARGEST + 1)
            announced = response.headers.get("Content-Length", "")
        if announced.isdigit() and len(data) < min(int(announced), _LARGEST):  # `read` with a limit does not say so
            raise IncompleteRead(data, int(announced) - len(data))
        if len(data) > _LARGEST:
            raise LabelStudioError(f"{self.url}{path}: an answer of more than {_LARGEST >> 20} MB")
        return data

    def _parsed(self, path: str, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise LabelStudioError(
                f"{self.url}{path.partition('?')[0]}: the answer is no JSON; is a Label Studio server there?"
            ) from None

    @property
    def _is_personal(self) -> bool:
        """Whether the token is a personal one (a JSON web token), which is exchanged for one that lasts minutes."""
        return self._token.count(".") == 2

    def _authorization(self) -> str:
        if not self._is_personal:
            return f"Token {self._token}"
        if not self._access:
            body = json.dumps({"refresh": self._token}).encode()
            path = "/api/token/refresh"
            answer = self._parsed(path, self._send("POST", path, body, "application/json", None))
            self._access = _field(answer, "access", str)
        return f"Bearer {self._access}"

    # -- what is said -----------------------------------------------------------------------------

    def _refusal(self, method: str, path: str, error: HTTPError) -> Exception:
        """What a status means for the user. Bodies of errors have an ``id`` as things that were made do."""
        place = f"{self.url}{path.partition('?')[0]}"
        with error:
            said = self._without_token(_detail(error))
        if error.code in (401, 403):
            return ConfigError(
                f"{self.url} does not take the token ({error.code}{said}): set LABEL_STUDIO_TOKEN to one from the page "
                "'Account & Settings', where legacy tokens may be switched off for the organization"
            )
        if 300 <= error.code < 400:
            return ConfigError(f"{place} answers from another address ({error.code}); give that one as `url`")
        if error.code == 404:
            return LabelStudioError(f"{place}: not found (404{said}); was it deleted, or is `url` another server?", 404)
        return LabelStudioError(f"{place}: {method} was refused ({error.code}{said})", error.code)

    def _away(self, reason: object) -> LabelStudioError:
        said = self._without_token(str(reason) or type(reason).__name__)
        return LabelStudioError(
            f"{self.url} does not answer ({said}). Nothing is lost: start the server again, then give the same "
            "command with --ckpt last"
        )

    def _without_token(self, text: str) -> str:
        for secret in (self._token, self._access):
            text = text.replace(secret, "***") if secret else text
        return text


class _NoRedirection(HTTPRedirectHandler):
    """Follows nothing: the header with the token would be sent along."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _opener(url: str) -> OpenerDirector:
    """Goes through the proxy of the environment, but never to this machine itself."""
    host = urlsplit(url).hostname or ""
    try:
        is_here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = host == "localhost"
    return build_opener(_NoRedirection(), *([ProxyHandler({})] if is_here else []))


def checked_url(url: str) -> str:
    """The address of a server without a slash at its end, or a :class:`ConfigError`."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_good = False
    if not is_good or not url.isascii() or any(character.isspace() for character in url):
        raise ConfigError("url: the address of the Label Studio server must be like http://127.0.0.1:8080")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ConfigError("url: only the address of the server, without a password, a query or a fragment")
    return url.rstrip("/")


def _detail(error: HTTPError) -> str:
    """What the server said about a refusal, in a line."""
    try:
        body = json.loads(error.read(100_000))
        said = body.get("validation_errors") or body.get("detail") or "" if isinstance(body, dict) else ""
    except (OSError, HTTPException, ValueError, RecursionError):
        said = ""
    text = " ".join((said if isinstance(said, str) else json.dumps(said)).split())
    return f": {text[:300]}" if text else ""


def _field(answer: Any, key: str, kind: type) -> Any:
    """A part of an answer, if it is of the right kind."""
    value = answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(value, kind):
        raise LabelStudioError(f"the server's answer has no {key!r}: is it a Label Studio server?")
    return value
