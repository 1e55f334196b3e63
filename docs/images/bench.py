"""Draws the bar charts of docs/benchmarks.md from its own tables, so that a changed figure changes the picture.

  python3 docs/images/bench.py         # writes bench-ring.svg, bench-s3.svg and bench-posix.svg beside this file

A bar is the first number of the column "ratio", a tick the number after "bar" if that is a ratio too. Rows without a ratio
and rows against other peers than those of the chart are left out.
"""

import html
import math
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parent / "benchmarks.md"
# Heading of the table, file, title, first words of "raw or peer" that are drawn.
CHARTS = [
    ("Ring", "bench-ring.svg", "Ring: throughput as a multiple of the bare drive", ("raw",)),
    ("S3", "bench-s3.svg", "S3: throughput as a multiple of nginx or of the bare drive", ("nginx", "raw")),
    ("POSIX", "bench-posix.svg", "FUSE and NFS: rate as a multiple of a plain directory", ("plain",)),
]
NAMES = {"raw": "bare drive", "nginx": "nginx", "plain": "plain directory"}
BACK, TEXT, FAINT, GRID = "#ffffff", "#1f2937", "#6b7280", "#e5e7eb"
KEPT, MISSED, TICK = "#2563eb", "#d97706", "#111827"
WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 860, 270, 190, 92, 27, 16
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def rows(page, heading):
    """The table below a heading, each row as a list of cells."""
    section = re.search(rf"(?ms)^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page)[1]
    table = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in table[2:]]


def bars(page, heading, peers):
    """What is drawn: label, peer, ratio, its text, bar or None, whether it was missed."""
    for what, _, peer, ratio, _ in rows(page, heading):
        peer, value = peer.split()[0], NUMBER.match(ratio)
        if peer in peers and value:
            limit = re.search(r"\bbar ([\d.,/s]+)", ratio)
            limit = limit and limit[1].rstrip(".,")
            limit = float(limit) if limit and NUMBER.fullmatch(limit) else None
            yield what, peer, float(value[0]), re.split(r"[(;]", ratio)[0].strip(), limit, "**missed**" in ratio


def text(x, y, words, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(words)}</text>'


def line(x, top, end, colour, more=""):
    return f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{end}" stroke="{colour}" {more}/>'


def draw(title, drawn):
    """One chart: bars from 0, a line at 1.0, a tick for each bar that was set."""
    most = max(max(value, limit or 0) for _, _, value, _, limit, _ in drawn)
    most = max(1.5, math.ceil(most * 2) / 2)
    scale, end = (WIDTH - LEFT - RIGHT) / most, TOP + ROW * len(drawn)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{end + 44}" viewBox="0 0 {WIDTH} {end + 44}" '
        f'font-family="system-ui, -apple-system, Helvetica, Arial, sans-serif" font-size="13" fill="{TEXT}">',
        f'<rect width="{WIDTH}" height="{end + 44}" rx="8" fill="{BACK}"/>',
        text(20, 30, title, 'font-size="17" font-weight="600"'),
        f'<rect x="20" y="48" width="12" height="12" rx="2" fill="{KEPT}"/>' + text(38, 59, "Stoker"),
        f'<rect x="100" y="48" width="12" height="12" rx="2" fill="{MISSED}"/>' + text(118, 59, "misses its bar"),
        line(232, 46, 62, TICK, 'stroke-width="3"') + text(242, 59, "bar; the dashed line is 1.0, as fast as the other side"),
    ]
    for step in range(int(most * 2) + 1):
        x = LEFT + step / 2 * scale
        out += [line(x, TOP - 6, end, GRID), text(x, end + 20, f"{step / 2:.1f}", f'text-anchor="middle" fill="{FAINT}"')]
    for number, (what, peer, value, words, limit, missed) in enumerate(drawn):
        y = TOP + ROW * number
        wide, colour = max(value * scale, 1), MISSED if missed else KEPT
        out += [
            text(LEFT - 10, y + 13, what, 'text-anchor="end"'),
            f'<rect x="{LEFT}" y="{y}" width="{wide:.1f}" height="{BAR}" rx="2" fill="{colour}"/>',
            text(WIDTH - RIGHT + 14, y + 13, words, 'font-weight="600"'),
            text(WIDTH - 20, y + 13, f"of {NAMES[peer]}", f'text-anchor="end" fill="{FAINT}"'),
        ]
        if limit:
            out.append(line(LEFT + limit * scale, y - 3, y + BAR + 3, TICK, 'stroke-width="3"'))
    out.append(line(LEFT + scale, TOP - 6, end, TEXT, 'stroke-dasharray="4 3"'))
    return "\n".join([*out, "</svg>", ""])


def main():
    page = PAGE.read_text()
    for heading, name, title, peers in CHARTS:
        drawn = list(bars(page, heading, peers))
        assert drawn, f"no ratios below {heading}"
        (HERE / name).write_text(draw(title, drawn))
        print(f"{name}: {len(drawn)} bars")


if __name__ == "__main__":
    main()
