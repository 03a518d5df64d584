"""Several versions beside each other: site/VERSION/ is one, and site/index.html lists those that are there.

`make docs` writes the installed version's folder and the list, and leaves the others as they are. No page needs to know
of later versions: each links to the list.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from sphinx.application import Sphinx

PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{project}</title>
<style>body {{ font-family: sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem; }}</style></head>
<body><h1>{project}</h1><p>{about}</p><ul>
{rows}
</ul></body>
</html>
"""
FRONT = """<!doctype html>
<meta charset="utf-8"><title>{title}</title>
<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">{title}</a>
"""


def order(name: str) -> list[int]:
    """Return a version's numbers, by which versions are sorted."""
    return [int(number) for number in re.findall(r"\d+", name)]


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the version's front page, which sends to the README's, and the list of versions above it."""
    if error is not None or app.builder.name != "html":
        return
    folder = Path(app.outdir)
    target = app.builder.get_target_uri(app.config.root_doc)
    (folder / "index.html").write_text(FRONT.format(title=app.config.html_title, target=target), encoding="utf-8")
    if folder.name != app.config.version:
        return
    names = sorted((path.parent.name for path in folder.parent.glob("*/index.html")), key=order, reverse=True)
    rows = "\n".join(
        f'<li><a href="{name}/index.html">{html.escape(name)}</a>{" (newest)" if i == 0 else ""}</li>'
        for i, name in enumerate(names)
    )
    about = "Documentation by version."
    (folder.parent / "index.html").write_text(
        PAGE.format(project=app.config.project, about=about, rows=rows), encoding="utf-8"
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """See Sphinx."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
