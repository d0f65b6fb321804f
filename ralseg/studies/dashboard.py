"""The page of `ralseg dashboard`: the studies of a store with their headlines, curves and reports.

It is served on this machine only, and knows a fixed set of addresses: nothing else can be read through it.
"""

import re
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from ralseg.runtime.files import read_json
from ralseg.studies.mlflow_sync import Mirror, studies
from ralseg.studies.report import PAGE, embedded, template

HOST = "127.0.0.1"
CURVES = "budget_curves.svg"
_TRIES = 100
Pages = Callable[[], dict[str, str]]
"""Gives what is there to be seen: HTML by address, `/` being the first."""

_ADDRESS = re.compile(rf"/|/\d+/{re.escape(PAGE)}")


def study_pages(uri: str, mlflow: str) -> dict[str, str]:
    """The list of a store's studies, and their reports.

    Args:
        uri: The store of MLflow.
        mlflow: Where MLflow's own page is.
    """
    pages, rows = {}, []
    for name in studies(uri):
        mirror = Mirror(name, uri)
        row = {"name": name, "chart": mirror.chart_link(mlflow)}
        folder = mirror.report_folder()
        if folder is not None and (folder / PAGE).is_file():
            row["report"] = f"/{mirror.experiment_id()}/{PAGE}"
            pages[row["report"]] = (folder / PAGE).read_text(encoding="utf-8")
            verdict = read_json(folder / "verdict.json")
            row["headline"] = verdict.get("headline", "") if isinstance(verdict, dict) else ""
            if (folder / CURVES).is_file():
                row["curve"] = embedded(folder / CURVES)
        rows.append(row)
    return {"/": template("dashboard.html.j2").render(studies=rows, mlflow=mlflow), **pages}


def serve(pages: Pages, first_port: int) -> ThreadingHTTPServer:
    """Serve pages from a thread, at the first free port; they are made anew whenever one is asked for.

    Args:
        pages: Gives the pages.
        first_port: The first port to try.
    """

    class Handler(BaseHTTPRequestHandler):
        """Answers with one of the pages, or not at all."""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            # another name for this address would be a web page that reads reports of others through a browser
            is_local = self.headers.get("Host", "").partition(":")[0] in (HOST, "localhost")
            page = pages().get(path) if is_local and _ADDRESS.fullmatch(path) else None
            if page is None:
                self.send_error(404)
                return
            content = page.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: every look at a page would be a line."""

    server = _bound(Handler, first_port)
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def _bound(handler: type[BaseHTTPRequestHandler], first_port: int) -> ThreadingHTTPServer:
    """A server at the first free port; at any, if the ones that were tried are taken."""
    for port in [*range(first_port, min(first_port + _TRIES, 65536)), 0]:
        try:
            return ThreadingHTTPServer((HOST, port), handler)
        except OSError:
            continue
    raise OSError(f"no free port on {HOST}")
