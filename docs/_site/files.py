"""Links from pages to files that are no pages: code, data, tables.

Such a file is copied to the same place in the site, or, once codemeta.json has a `codeRepository`, linked there.
Sphinx's own download links would put it under a digest and have browsers save rather than show it. A folder has nothing
to show in a site without a server: its name stays, as code.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.osutil import relative_uri

LOGGER = logging.getLogger(__name__)


def address(root: Path) -> str | None:
    """Return the repository's address, if it has one."""
    found: str | None = json.loads((root / "codemeta.json").read_text(encoding="utf-8")).get("codeRepository")
    return found


class FilesInPlace(SphinxTransform):
    """Let links to files lead to copies of them, and links to folders be their names."""

    default_priority = 5  # before Sphinx collects what is downloaded

    def apply(self, **kwargs: Any) -> None:
        """See docutils."""
        root = Path(self.env.srcdir)
        repository = address(root)
        for node in list(self.document.findall(addnodes.download_reference)):
            page = root / self.env.docname
            place = (page.parent / unquote(node["reftarget"])).resolve()
            if not place.is_relative_to(root):
                LOGGER.warning("a link leaves the repository: %s", node["reftarget"], location=node)
                continue
            name = place.relative_to(root).as_posix()
            if repository is None:
                self.app.env.files_linked.add(name)
                uri = relative_uri(self.app.builder.get_target_uri(self.env.docname), name)
            else:
                uri = f"{repository}/blob/main/{name}"
            node.replace_self(nodes.reference("", "", *node.children, internal=repository is None, refuri=uri))
        for node in list(self.document.findall(addnodes.pending_xref)):
            target = node.get("reftarget", "")
            if node.get("reftype") == "myst" and node.get("refdomain") is None and not target.startswith("#"):
                place = (root / self.env.docname).parent / unquote(target)
                if place.is_dir():
                    text = place.resolve().relative_to(root).as_posix() + "/"
                    node.replace_self(nodes.literal(text, text))


def copy(app: Sphinx, error: Exception | None) -> None:
    """Copy what is linked once the pages are there."""
    if error is None:
        for name in sorted(app.env.files_linked):
            made = Path(app.outdir, name)
            made.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(app.srcdir, name), made)


def begin(app: Sphinx) -> None:
    """Forget what an earlier build linked."""
    app.env.files_linked = set()


def setup(app: Sphinx) -> dict[str, bool]:
    """See Sphinx."""
    app.connect("builder-inited", begin)
    app.connect("build-finished", copy)
    app.add_transform(FilesInPlace)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
