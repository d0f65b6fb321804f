"""Looks at the built docs site in a browser, on a desk and on a phone, and follows every link within it.

    python tests/support/site.py site                   # `make docs-check`
    python tests/support/site.py site --pictures DIR    # and leaves a picture of each page

A page fails where the console reports an error, where it asks another host for anything, where it is wider than the
screen, where a picture is missing, or where a link leads to no page or to no place on it.
"""

import argparse
import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urldefrag, urljoin, urlparse
from urllib.request import Request, urlopen

sys.path.append(str(Path(__file__).parents[1]))  # for support.browser

from support.browser import open_browser

SCREENS = {"desk": {"width": 1440, "height": 900}, "phone": {"width": 390, "height": 844}}
TALLEST = 5000
"""Pixels of a picture; some pages are longer than what a browser draws at once."""
WIDER = """() => [...document.querySelectorAll('body *')].filter(e => {
  if (e.getBoundingClientRect().right <= innerWidth + 1 || getComputedStyle(e).position === 'fixed') return false;
  for (let p = e.parentElement; p; p = p.parentElement)
    if (p !== document.body && /auto|scroll|hidden/.test(getComputedStyle(p).overflowX)) return false;
  return true;
}).slice(0, 3).map(e => e.tagName.toLowerCase() + ' ' + (e.textContent || '').trim().slice(0, 60))"""
LINKS = "() => [...document.querySelectorAll('a[href]')].map(a => a.href)"
PLACES = "() => [...document.querySelectorAll('[id], a[name]')].map(e => e.id || e.name)"
UNSEEN = "() => [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing of what is asked for."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of a folder on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


def look(browser: Any, base: str, names: list[str], pictures: Path | None) -> list[str]:
    """What is wrong with the pages of a site.

    Args:
        browser: Shows them.
        base: Address of the site.
        names: Its pages.
        pictures: Where a picture of each is left; None: nowhere.
    """
    problems: list[str] = []
    links: dict[str, set[str]] = {}
    places: dict[str, set[str]] = {}
    for screen, size in SCREENS.items():
        page = browser.new_page(viewport=size)
        here = [""]
        _listen(page, base, here, problems)
        for name in names:
            here[0] = f"{name} on a {screen}"
            page.goto(base + name, wait_until="load")
            if pictures is not None:
                height = min(page.evaluate("document.documentElement.scrollHeight"), TALLEST)
                clip = {"x": 0, "y": 0, "width": size["width"], "height": height}
                page.screenshot(path=pictures / f"{name.replace('/', '_')}.{screen}.png", full_page=True, clip=clip)
            problems += [f"{here[0]}: wider than the screen: {what}" for what in page.evaluate(WIDER)]
            problems += [f"{here[0]}: no picture at {what}" for what in page.evaluate(UNSEEN)]
            links[name], places[name] = set(page.evaluate(LINKS)), set(page.evaluate(PLACES))
        page.close()
    return problems + [problem for name in names for problem in _dead_links(base, name, links[name], places)]


def _listen(page: Any, base: str, here: list[str], problems: list[str]) -> None:
    """Note what a page complains of, and whom it asks.

    Args:
        page: Of the browser.
        base: Address of the site.
        here: What is being looked at.
        problems: Where it is noted.
    """

    def said(message: Any) -> None:
        if message.type == "error":
            problems.append(f"{here[0]}: {message.text}")

    def asked(request: Any) -> None:
        if not request.url.startswith((base, "data:", "blob:")):
            problems.append(f"{here[0]}: asks {request.url}")

    page.on("console", said)
    page.on("pageerror", lambda error: problems.append(f"{here[0]}: {error}"))
    page.on("request", asked)


def _is_there(address: str) -> bool:
    """Whether a server has something at an address."""
    try:
        with urlopen(Request(address, method="HEAD")):
            return True
    except HTTPError:
        return False


def _dead_links(base: str, name: str, links: set[str], places: dict[str, set[str]]) -> Iterator[str]:
    """Links of a page that lead nowhere within the site."""
    for link in sorted(links):
        address, place = urldefrag(urljoin(base + name, link))
        if not address.startswith(base):
            continue
        target = urlparse(address).path.lstrip("/") or "index.html"
        target += "index.html" if target.endswith("/") else ""
        if target in places:
            if place and place not in places[target]:
                yield f"{name}: no place #{place} on {target}"
        elif not _is_there(address):
            yield f"{name}: no page {target}"


def main() -> int:
    """Look at all pages; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("--pictures", type=Path)
    chosen = parser.parse_args()
    site: Path = chosen.site
    names = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if path.name != "404.html")
    if not names:
        print(f"{site}: no pages; `make docs` builds them", file=sys.stderr)
        return 1
    if chosen.pictures:
        chosen.pictures.mkdir(parents=True, exist_ok=True)
    with served(site) as base, open_browser() as browser:
        problems = look(browser, base, names, chosen.pictures)
    print("\n".join([*problems, f"{len(names)} pages, {len(problems)} problems"]))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
