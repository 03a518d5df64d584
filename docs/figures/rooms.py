"""Draw the rooms, docs/figures/rooms.svg: python docs/figures/rooms.py."""

from pathlib import Path

LAYERS = [  # from the top down: name, what it holds, colour
    [("cli", "the commands, by group", "#e8eef7"), ("api", "load, run: for a notebook", "#e8eef7")],
    [("claims", "printed numbers, orderings, verdicts, evidence, their page", "#e8eef7")],
    [("pipeline", "chain of stages, jobs, running, checkpoints, estimate, verify", "#f7efe0")],
    [("report", "tables, figures and page of one study, from result files alone", "#e8eef7")],
    [("config", "typed settings: types, reading, checks, schema", "#e8eef7")],
    [("privacy", "accounting, noise and clipping around a method, rebalancing", "#e3f3e6")],
    [("methods", "IFCA, CLoVE, FedGWC, CFL, ...: one file each", "#e3f3e6")],
    [("clustering", "distances, clusterers, choice of k", "#e3f3e6")],
    [("simulation", "the one loop over rounds; method, state, server, ledger, record, warm-up", "#f7efe0")],
    [("engine", "trains and scores many clients at once: the only clever place", "#fbe3e0")],
    [("models", "networks", "#e3f3e6")],
    [("data", "federation, readers, partitions, transforms, catalogue, download", "#e3f3e6")],
    [("storage", "atomic files with manifests, digests, rows on disk, locks", "#eeeeee")],
    [("metrics", "measures", "#eeeeee"), ("progress", "", "#eeeeee"), ("registry", "parts, options", "#eeeeee"),
     ("streams", "named random draws", "#eeeeee"), ("errors", "", "#eeeeee")],
]  # fmt: skip
WIDTH, HEIGHT, GAP, LEFT = 760, 38, 6, 40


def draw() -> str:
    """Return the picture as SVG."""
    parts, y = [], GAP
    for layer in LAYERS:
        width = (WIDTH - GAP * (len(layer) - 1)) / len(layer)
        for column, (name, text, colour) in enumerate(layer):
            x, middle = LEFT + column * (width + GAP), y + HEIGHT / 2 + 5
            parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{HEIGHT}" rx="4" fill="{colour}" '
                         'stroke="#999"/>')  # fmt: skip
            if len(layer) < 3:
                parts.append(f'<text x="{x + 12:g}" y="{middle:g}" font-weight="bold">{name}</text>')
                parts.append(f'<text x="{x + 112:g}" y="{middle:g}" fill="#333">{text}</text>')
            else:
                at = f'x="{x + width / 2:g}" text-anchor="middle"'
                top = middle if not text else middle - 7
                parts.append(f'<text {at} y="{top:g}" font-weight="bold">{name}</text>')
                parts.append(f'<text {at} y="{middle + 9:g}" fill="#333" font-size="11">{text}</text>')
        y += HEIGHT + GAP
    arrow = (
        f'<path d="M20 {GAP} V{y - 20}" stroke="#555" stroke-width="2"/>'
        f'<path d="M13 {y - 24} L20 {y - GAP} L27 {y - 24} Z" fill="#555"/>'
        f'<text transform="translate(14 {y / 2:g}) rotate(-90)" text-anchor="middle" fill="#555">imports go down</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + GAP} {y}" font-size="13" '
        f'font-family="DejaVu Sans, Verdana, sans-serif"><rect width="100%" height="100%" fill="white"/>'
        + "".join(parts) + arrow + "</svg>\n"
    )  # fmt: skip


if __name__ == "__main__":
    Path(__file__).with_name("rooms.svg").write_text(draw(), encoding="utf-8")
