"""A picture of a report: one group of bars for each unit. Written by hand: a plotting library is not needed for rectangles."""

from __future__ import annotations

from html import escape

from .report import UNITS, Report, Workload

WIDTH, LABEL, ROW, GAP = 860, 260, 22, 34
COLOURS = {"stoker": "#c2410c", "raw": "#525252", "other": "#60a5fa"}


def _colour(name: str) -> str:
    if any(word in name for word in ("native", "snapshot", "stream", "stoker")):
        return COLOURS["stoker"]
    return COLOURS["raw"] if "raw" in name or "memory_copy" in name else COLOURS["other"]


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{escape(text)}</text>'


def _group(unit: str, rows: list[Workload], top: int) -> tuple[list[str], int]:
    most = max(one.figure for one in rows) or 1.0
    parts = [_text(8, top, UNITS.get(unit, unit), 'font-weight="bold"')]
    y = top + 10
    for one in rows:
        long = (WIDTH - LABEL - 120) * one.figure / most
        parts.append(_text(LABEL - 8, y + 14, one.name, 'text-anchor="end"'))
        parts.append(f'<rect x="{LABEL}" y="{y + 2}" width="{max(long, 1):.1f}" height="{ROW - 6}" fill="{_colour(one.name)}"/>')
        figure = f"{one.figure:.0f}" if one.figure >= 100 else f"{one.figure:.3g}"
        parts.append(_text(LABEL + max(long, 1) + 6, y + 14, figure))
        y += ROW
    return parts, y + GAP


def picture(report: Report) -> str:
    """The picture as text. Workloads that were left out are not in it."""
    units = list(dict.fromkeys(one.unit for one in report.workloads if one.figures))
    parts, top = [_text(8, 22, f"stoker.bench {report.bench}", 'font-size="15" font-weight="bold"')], 50
    for unit in units:
        group, top = _group(unit, [one for one in report.workloads if one.figures and one.unit == unit], top)
        parts += group
    words = [str(report.machine[name]) for name in ("cpu", "cpus", "kernel", "filesystem", "cold") if report.machine.get(name)]
    parts.append(_text(8, top, ", ".join(words), 'fill="#737373" font-size="11"'))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 14}" viewBox="0 0 {WIDTH} {top + 14}"'
    style = 'font-family="system-ui, sans-serif" font-size="12" fill="#171717"'
    background = f'<rect width="{WIDTH}" height="{top + 14}" fill="#ffffff"/>'
    return "\n".join([f"{head} {style}>", background, *parts, "</svg>", ""])
