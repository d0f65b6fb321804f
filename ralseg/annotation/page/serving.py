"""Serving the page from a thread of this process, at an address that stays the same when a run goes on."""

import json
import secrets
import socket
import threading
import time
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from ralseg.errors import ConfigError
from ralseg.runtime.files import read_json, write_atomically

PORT = 8808
FILE = ".page.json"
_TRIES = 50
_PATIENCE = 6.0  # seconds in which a killed process and its workers let go of their port


class Address:
    """Where a run's page is: host, port and token. Kept in the run's folder, so that an open page finds it again.

    Args:
        folder: Where it is kept, readable by its owner only.
        host: The address to listen at.
        port: The port; None: the one from before, else the first free one from ``PORT`` on.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int | None = None) -> None:
        kept = read_json(folder / FILE)
        kept = kept if isinstance(kept, dict) else {}
        token = kept.get("token")
        self.host = host
        self.token = token if isinstance(token, str) and len(token) >= 32 and token.isalnum() else secrets.token_hex(20)
        self.socket = _bound(host, port, kept.get("port"))
        self.port: int = self.socket.getsockname()[1]
        # not durable: else others might read it; a lost one costs a new address
        write_atomically(folder / FILE, json.dumps({"token": self.token, "port": self.port}) + "\n", durable=False)

    def url(self, host: str | None = None) -> str:
        """What people open in their browser."""
        shown = host or {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.port}/{self.token}/"


def _bound(host: str, port: int | None, before: object) -> socket.socket:
    """A socket at the port that is asked for, at the one from before, or at the next free one."""
    if port is not None:
        return _bind(host, port, _PATIENCE)
    if isinstance(before, int) and 0 < before < 65536:
        try:
            return _bind(host, before, _PATIENCE)
        except ConfigError:
            pass
    for each in range(PORT, PORT + _TRIES):
        try:
            return _bind(host, each)
        except ConfigError:
            continue
    return _bind(host, 0)


def _bind(host: str, port: int, patience: float = 0.0) -> socket.socket:
    end = time.monotonic() + patience
    while True:
        found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, port))
            found.listen(128)
            return found
        except OSError as error:
            found.close()
            if time.monotonic() >= end:
                raise ConfigError(
                    f"--host {host} --port {port}: nobody can listen there ({error.strerror or error}); give another"
                ) from error
        time.sleep(0.25)


class PageServer:
    """Serves an application until it is stopped, or the process ends.

    Args:
        app: The application.
        address: Where.
    """

    def __init__(self, app: ASGIApp, address: Address) -> None:
        config = uvicorn.Config(
            app, http="h11", lifespan="off", ws="none", log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=2,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([address.socket],), name="page", daemon=True)

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Serve no more."""
        self._server.should_exit = True
        self._thread.join(timeout=5)
