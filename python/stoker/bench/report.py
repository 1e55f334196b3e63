"""What was found: one workload per figure, its ratios to others, and the bars of these."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Sense = Literal["at least", "at most"]

#: How units are written for people.
UNITS = {"mb_s": "MB/s", "s": "s", "us": "us", "mib": "MiB", "ops_per_sample": "ops/sample"}


@dataclass(frozen=True)
class Bar:
    """What a workload is compared with: its ratio to the workload ``to``, or without that the figure itself.

    Without a ``limit`` it is a ratio that is told and not judged. ``means`` says in words what the limit stands for.
    """

    to: str | None = None
    sense: Sense = "at least"
    limit: float | None = None
    means: str = ""

    def words(self) -> str:
        if self.limit is None:
            return ""
        of = f"x {self.to}" if self.to else ""
        return f"{self.sense} {self.limit:.4g}{of}" + (f" ({self.means})" if self.means else "")

    def passes(self, value: float) -> bool | None:
        if self.limit is None:
            return None
        return value >= self.limit if self.sense == "at least" else value <= self.limit


@dataclass
class Workload:
    """Figures of one workload, one of each round."""

    name: str
    unit: str
    figures: list[float] = field(default_factory=list)
    bars: Sequence[Bar] = ()
    #: Further figures and words without a bar.
    more: dict[str, Any] = field(default_factory=dict)
    #: Why it was not run.
    skipped: str | None = None

    @property
    def figure(self) -> float:
        return statistics.median(self.figures)


@dataclass
class Report:
    """All workloads of a run."""

    bench: str
    workloads: list[Workload] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)

    def add(self, workload: Workload) -> Workload:
        self.workloads.append(workload)
        return workload

    def find(self, name: str) -> Workload | None:
        """A workload that was measured."""
        return next((one for one in self.workloads if one.name == name and one.figures), None)

    def _ratios(self, one: Workload) -> list[dict[str, Any]]:
        rows = []
        for bar in one.bars:
            if bar.to is None:
                values = one.figures
            elif (other := self.find(bar.to)) is not None:
                values = [ours / theirs for ours, theirs in zip(one.figures, other.figures) if theirs]
            else:
                values = []
            row: dict[str, Any] = {"to": bar.to, "bar": bar.words()}
            if values:
                middle = statistics.median(values)
                row |= {"ratio": _short(middle), "ratio_min": _short(min(values)), "ratio_max": _short(max(values))}
                row["pass"] = bar.passes(middle)
            else:
                row |= {"ratio": None, "ratio_min": None, "ratio_max": None, "pass": None}
            rows.append(row)
        return rows

    def json(self) -> dict[str, Any]:
        """For programs."""
        rows = []
        for one in self.workloads:
            row: dict[str, Any] = {"name": one.name, "unit": one.unit}
            if one.figures:
                row |= {"figure": _short(one.figure), "figure_min": _short(min(one.figures))}
                row |= {"figure_max": _short(max(one.figures)), "rounds": len(one.figures)}
            else:
                row |= {"figure": None, "figure_min": None, "figure_max": None, "rounds": 0}
            ratios = self._ratios(one) if one.figures else []
            judged = [ratio["pass"] for ratio in ratios if ratio["pass"] is not None]
            row["ratios"] = ratios
            row["bar"] = "; ".join(bar.words() for bar in one.bars if bar.limit is not None)
            row["pass"] = all(judged) if judged else None
            row["skipped"] = one.skipped
            row |= {name: _short(value) if isinstance(value, float) else value for name, value in one.more.items()}
            rows.append(row)
        return {"bench": self.bench, "workloads": rows, "machine": self.machine}

    def table(self) -> str:
        """For people."""
        lines = [["workload", "figure", "unit", "min..max", "ratios", "bars"]]
        for row in self.json()["workloads"]:
            if row["skipped"]:
                lines.append([row["name"], "-", "", "", "", f"skipped: {row['skipped']}"])
                continue
            told = [one for one in row["ratios"] if one["ratio"] is not None and one["to"]]
            # What a row is compared with has its own first word, mostly.
            group = row["name"].partition("_")[0] + "_"
            ratios = ", ".join(f"{one['ratio']:.2f}x {one['to'].removeprefix(group)}" for one in told)
            missed = [one["bar"] for one in row["ratios"] if one["pass"] is False]
            verdict = "-" if row["pass"] is None else "ok" if row["pass"] else "missed: " + ", ".join(missed)
            spread = f"{_human(row['figure_min'])}..{_human(row['figure_max'])}"
            lines.append([row["name"], _human(row["figure"]), UNITS.get(row["unit"], row["unit"]), spread, ratios, verdict])
        widths = [max(map(len, column)) for column in zip(*lines)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def _short(value: float) -> float:
    """Four digits that count, so that JSON stays readable."""
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value, 1)


def _human(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def forth_and_back(rounds: int, sides: Sequence[Callable[[], None]]) -> None:
    """Runs all sides once in each round, every second round in the opposite order."""
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            side()
