"""What the pages need beside their texts: on the page of the method, the code lies open."""

from typing import Any


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Unfold the sources on the page that puts the method beside its code."""
    if page.file.src_uri != "method.md":
        return html
    return html.replace('<details class="mkdocstrings-source">', '<details class="mkdocstrings-source" open>')
