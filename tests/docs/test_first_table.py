"""docs/first-table.md, the pictures beside it, and docs/figures/first_table.py, which draws them."""

from __future__ import annotations

import re
import runpy
import shlex
from html import unescape
from pathlib import Path

import pytest

from clusterfl.cli.program import _parser

DOCS = Path(__file__).parents[2] / "docs"
DRAWN = runpy.run_path(str(DOCS / "figures" / "first_table.py"))
STEPS: dict[str, str] = DRAWN["STEPS"]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_has_its_command_and_its_screen(name: str) -> None:
    """What the page says to type, what was typed, and what the program takes are the same."""
    page = (DOCS / "first-table.md").read_text(encoding="utf-8")
    screen = unescape((DOCS / "first-table" / f"{name}.svg").read_text(encoding="utf-8")).replace(
        "\N{NO-BREAK SPACE}", " "
    )
    assert f"\n{STEPS[name]}\n" in page
    assert f"(first-table/{name}.svg)" in page
    assert f"$ {STEPS[name]}<" in screen
    _parser().parse_args(shlex.split(STEPS[name])[1:])


@pytest.mark.parametrize("name", STEPS)
def test_numbers_said_of_a_screen_are_on_it(name: str) -> None:
    page = (DOCS / "first-table.md").read_text(encoding="utf-8")
    said = re.findall(rf"!\[([^]]*)\]\(first-table/{name}\.svg\)", page)[0]
    screen = re.sub("<[^>]*>", " ", (DOCS / "first-table" / f"{name}.svg").read_text(encoding="utf-8"))
    assert [number for number in re.findall(r"\d+(?:\.\d+)?", said) if number not in screen] == []


def test_no_picture_is_left_over() -> None:
    """Each file beside the page is on it."""
    names = {f"{name}.svg" for name in STEPS} | {f"{name}.png" for name in DRAWN["PAGES"]}
    assert {file.name for file in (DOCS / "first-table").iterdir()} == names


def test_a_screen_shows_what_stands_there_in_the_end() -> None:
    """Written over, a line shows its last text, cleared from below none of its first; long ones are folded."""
    shown = DRAWN["shown"]
    assert shown("a\r\n10 %\r20 %\r\n") == ["a", "20 %"]
    assert shown("one\r\n\x1b[1A\x1b[2K\x1b[32mtwo\x1b[0m\n\n") == ["two"]
    assert shown("x" * (DRAWN["COLUMNS"] + 1)) == ["x" * DRAWN["COLUMNS"], "x"]
    many = shown("\n".join(str(n) for n in range(DRAWN["MOST"] + 7)))
    assert (many[0], many[DRAWN["MOST"] // 2], many[-1]) == ("0", "  ... 7 lines ...", str(DRAWN["MOST"] + 6))
