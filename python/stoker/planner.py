"""Plans: what to buy, what to expect, and why a run was slow. The numbers are those of ``stoker plan`` and of the console.

>>> import stoker.planner
>>> plan = stoker.planner.plan("io", gpus=8, workers=16, sample_size="128KiB", pattern="files")
>>> plan.title, plan["utilization"]  # doctest: +SKIP
>>> plan.changes[0]["what"]  # doctest: +SKIP
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _stoker

__all__ = ["Plan", "Verdict", "explain", "models", "plan", "what_if"]

#: A document of `stoker plan calibrate --out FILE`: the document, or the path of its file.
Calibration = Mapping[str, Any] | str | os.PathLike[str]


@dataclass(frozen=True)
class Plan:
    """What a model says. ``plan["utilization"]`` is the value of a figure, in base units."""

    #: The verdict in one line, how good it is (`ok`, `warn`, `bad`, `plain`), and why.
    title: str
    tone: str
    reasons: list[str]
    #: Figures by name: label, value, unit, text, tone.
    figures: dict[str, dict[str, Any]]
    #: What would help most, the best first: what, before, after, text.
    changes: list[dict[str, Any]]
    #: What depends on what: x, and lines with a name and y.
    curves: list[dict[str, Any]]
    #: Constants, assumed and measured, and what was taken for granted.
    constants: list[dict[str, Any]]
    assumptions: list[str]
    #: All inputs in base units.
    inputs: dict[str, Any]
    #: The whole document, as `stoker plan --json` prints it.
    document: dict[str, Any]

    def __getitem__(self, figure: str) -> float:
        value = self.figures[figure]["value"]
        return float("inf") if value is None else float(value)

    def __str__(self) -> str:
        return self.title


@dataclass(frozen=True)
class Verdict:
    """Why a run waited for data."""

    #: `nothing_wrong`, `tiny_files`, `one_worker`, `random_reads`, `cold_lake`, `throttled_drive`, `drive_bound`,
    #: `metadata_storm`, `small_batch`, `decode_bound`, `network_bound` or `unexplained`.
    cause: str
    title: str
    #: Share of the time that the loop waited, and share of that which the cause explains.
    waited: float
    explained: float
    #: Utilization as it was, and as it would be without the cause.
    utilization: float
    predicted: float
    advice: str
    evidence: list[str]

    def __str__(self) -> str:
        return self.title


def _calibration(given: Calibration | None) -> str | None:
    if given is None:
        return None
    return json.dumps(given) if isinstance(given, Mapping) else Path(given).read_text()


def plan(kind: str = "io", *, model: str = "stoker", calibration: Calibration | None = None, **inputs: Any) -> Plan:
    """Makes a plan: ``io``, ``design``, ``sim``, ``gravity``, ``kv`` or ``slo``.

    Inputs are numbers in base units (bytes, seconds, bytes per second, shares of one) or texts with units, such as ``"4MiB"``. Those
    that do not fit raise a ``ValueError`` that names each of them, with its range. ``models()`` lists them.
    """
    said = json.loads(_stoker.plan(kind, model, json.dumps(inputs), _calibration(calibration)))
    return Plan(
        title=said["title"],
        tone=said["tone"],
        reasons=said["reasons"],
        figures={one["name"]: one for one in said["figures"]},
        changes=said["changes"],
        curves=said["curves"],
        constants=said["constants"],
        assumptions=said["assumptions"],
        inputs=said["inputs"],
        document=said,
    )


def what_if(
    change: str, kind: str = "io", *, calibration: Calibration | None = None, **inputs: Any
) -> list[dict[str, Any]]:
    """The figures of a plan that a change moves: name, label, before, after, text. `stoker plan what-if --help` lists changes."""
    moved = json.loads(_stoker.plan_what_if(kind, json.dumps(inputs), change, _calibration(calibration)))
    return list(moved or [])


def models() -> list[dict[str, Any]]:
    """What can be planned: for each model its inputs with units, ranges and defaults."""
    return list(json.loads(_stoker.plan_models()))


def explain(run: Mapping[str, Any] | str | os.PathLike[str], *, calibration: Calibration | None = None) -> Verdict:
    """Why a run waited: from what a ``stoker.data.Recorder`` recorded, or from the file that it wrote."""
    text = json.dumps(run) if isinstance(run, Mapping) else Path(run).read_text()
    return Verdict(**json.loads(_stoker.explain_slow(text, _calibration(calibration))))
