"""Formulas as MathML, made while the site is built: browsers show it without a script or a font of their own."""

from __future__ import annotations

from docutils import nodes
from math_core import LatexError, LatexToMathML
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator

CONVERTER = LatexToMathML()


def converted(node: nodes.math | nodes.math_block, display: bool) -> str:
    """Return a formula as MathML; one that can't be read stops the build."""
    try:
        return CONVERTER.convert_with_local_state(node.astext(), displaystyle=display)
    except LatexError as error:
        raise ExtensionError(f"{node.source}:{node.line}: no MathML for '{node.astext()}': {error}") from error


def inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a line."""
    self.body.append(converted(node, display=False))
    raise nodes.SkipNode


def block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on its own line, which scrolls where it is wider than the page."""
    self.body.append(f'<div class="formula">{converted(node, display=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """See Sphinx: register the renderer and choose it."""
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
