"""A browser that is driven by playwright, where there is one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

SWITCHES = (
    *("--no-sandbox", "--headless", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def chromium() -> str:
    """Debian's browser; where there is none, the test is skipped."""
    found = os.environ.get("RALSEG_CHROMIUM") or shutil.which("chromium")
    if not found:
        pytest.skip("no chromium: apt-get install chromium, or let RALSEG_CHROMIUM name one")
    return found


@contextmanager
def open_browser() -> Iterator[Any]:
    """A browser that is driven by playwright; where either is missing, the test is skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = chromium()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(SWITCHES))
        try:
            yield browser
        finally:
            browser.close()
