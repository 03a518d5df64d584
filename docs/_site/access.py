"""What readers with a keyboard or a screen reader need, and the theme leaves out."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

TREE = "furo_navigation_tree"  # the side bar's links, by the theme's handler of the same event


def mend(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Give the side bar's captions, which are headings, the level that a heading must have."""
    if TREE in context:
        context[TREE] = context[TREE].replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app: Sphinx) -> dict[str, bool]:
    """See Sphinx."""
    app.connect("html-page-context", mend, priority=900)  # after the theme's
    return {"parallel_read_safe": True, "parallel_write_safe": True}
