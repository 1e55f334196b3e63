"""``python -m stoker.bench plan``: the planner calibrates once, predicts loaders, checkpoints and reads that a seed draws, and then they run."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import measuring
from .calibrating import Calibrating
from .ground import human, say, scratch
from .measuring import Ground
from .node import Node, program
from .report import Bar, Report, Workload

#: Median and P90 of the relative errors that are allowed.
MEDIAN_MAX, P90_MAX = 0.15, 0.35
#: Ring of the node, and its memory.
RING, MEMORY = 4 << 30, 512 << 20


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the configurations (default 1)")
    parser.add_argument("--loaders", type=int, default=30, metavar="N", help="loader configurations (default 30)")
    parser.add_argument("--checkpoints", type=int, default=12, metavar="N", help="checkpoints (default 12)")
    parser.add_argument("--reads", type=int, default=12, metavar="N", help="read latencies (default 12)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="short runs of each, of which the middle counts (default 5)")
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="write the calibration here")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="write the design ledger here, too")


@dataclass
class Case:
    """Something that is predicted, and then measured."""

    #: The plan, its inputs, and the figure that is compared.
    kind: str
    figure: str
    inputs: Callable[[], dict[str, Any]]
    words: str
    run: Callable[[], list[float]]
    predicted: float = 0.0
    id: str = ""
    measured: list[float] = field(default_factory=list)

    @property
    def error(self) -> float:
        seen = statistics.median(self.measured)
        return (self.predicted - seen) / seen


def draw(seed: int, loaders: int, checkpoints: int, reads: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The configurations of a seed: everything by chance, sizes evenly over their powers."""
    chance = random.Random(f"stoker plan {seed}")

    def power(low: int, high: int) -> int:
        return int(2 ** chance.uniform(low.bit_length() - 1, high.bit_length() - 1))

    for _ in range(loaders):
        state = chance.choice(measuring.STATES)
        pattern = chance.choice(measuring.PATTERNS[state])
        size = power(4 << 10, 1 << 20) // 512 * 512
        yield "loader", {"workers": chance.randint(1, 4), "sample_size": size, "pattern": pattern, "state": state}
    for _ in range(checkpoints):
        yield "checkpoint", {"size": power(4 << 20, 256 << 20), "shards": chance.choice((1, 2, 4, 8))}
    for _ in range(reads):
        yield "read", {"size": power(4 << 10, 4 << 20) // 4096 * 4096, "state": chance.choice(measuring.STATES)}


def cases(ground: Ground, seed: int, loaders: int, checkpoints: int, reads: int) -> Iterator[Case]:
    """What a seed draws, ready to be predicted and run. The data of all of them is made first."""
    for kind, drawn in draw(seed, loaders, checkpoints, reads):
        if kind == "loader":
            probe = measuring.Loader(ground, **drawn)
            words = f"{drawn['workers']} workers, {human(drawn['sample_size'])}, {drawn['pattern']}, {drawn['state']}"
            yield Case("io", "samples", probe.inputs, words, probe.run)
        elif kind == "checkpoint":
            save = measuring.Checkpoint(ground, **drawn)
            yield Case("design", "checkpoint_time", save.inputs, f"{human(drawn['size'])} in {drawn['shards']} shards", save.run)
        else:
            read = measuring.Read(ground, **drawn)
            yield Case("io", "read_latency", read.inputs, f"{human(drawn['size'])}, {drawn['state']}", read.run)


def predict(case: Case, calibration: dict[str, Any], ledger: Path | None, folder: Path, number: int) -> None:
    """By the program, as anybody would, which keeps it in the ledger; that is before anything of it runs."""
    given, measured = folder / "inputs.json", folder / "calibration.json"
    given.write_text(json.dumps(case.inputs()))
    measured.write_text(json.dumps(calibration))
    args = ["plan", case.kind, "--input", str(given), "--calibration", str(measured), "--json"]
    if ledger is not None:
        args += ["--job", f"{number}: {case.words}", "--ledger", str(ledger)]
    done = subprocess.run([program(), *args], capture_output=True, text=True)
    if done.returncode:
        raise ChildProcessError(f"`stoker {' '.join(args)}`: {done.stderr.strip()}")
    said = json.loads(done.stdout)
    case.predicted = next(one["value"] for one in said["figures"] if one["name"] == case.figure)
    case.id = done.stderr.partition("kept as ")[2].split(" ", 1)[0]


def record(case: Case, ledger: Path) -> None:
    """What came of it."""
    seen = statistics.median(case.measured)
    args = ["plan", "ledger", "record", case.id, f"{case.figure}={seen!r}", "--ledger", str(ledger)]
    subprocess.run([program(), *args], check=True, capture_output=True)


def quantile(values: list[float], share: float) -> float:
    """As the planner has it: between two values it is in between."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low, high = int(at), min(int(at) + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def calm() -> str:
    """Asks for the processor before others, so that their work is not measured; only root may."""
    try:
        os.nice(-15)
        return "nice -15"
    except OSError:
        return "as nice as others"


def run(args: argparse.Namespace) -> Report:
    report = Report("plan")
    calmness = calm()
    with scratch(args.dir, RING + (2 << 30)) as folder, Node(folder / "node", ring=args.ring or RING, memory=MEMORY) as node:
        ground = Ground(node, folder, args.rounds)
        # What is drawn is made first, and what is to be cold can be so only once.
        drawn = list(cases(ground, args.seed, args.loaders, args.checkpoints, args.reads))
        calibrating = Calibrating(ground)
        ground.settle()
        began = time.monotonic()
        calibration = calibrating.run()
        say(f"calibrated in {time.monotonic() - began:.0f} s")
        if args.calibration:
            args.calibration.write_text(json.dumps(calibration, indent=1) + "\n")
        ledger = folder / "ledger.jsonl"
        for number, case in enumerate(drawn):
            predict(case, calibration, ledger, folder, number)
        for number, case in enumerate(drawn):
            case.measured = case.run()
            record(case, ledger)
            say(f"{case.kind} {case.words}: {case.predicted:.4g} predicted, {statistics.median(case.measured):.4g} measured, {case.error:+.1%}")
        if args.ledger:
            args.ledger.write_text(ledger.read_text())
        for name, figure in (("loader", "samples"), ("checkpoint", "checkpoint_time"), ("read", "read_latency")):
            errors = [abs(case.error) for case in drawn if case.figure == figure]
            if errors:
                report.add(errors_of(name, errors))
        if drawn:
            report.add(errors_of("all", [abs(case.error) for case in drawn]))
        report.machine |= {"seed": args.seed, "priority": calmness, "rounds": args.rounds}
    return report


def errors_of(name: str, errors: list[float]) -> Workload:
    """Median and P90, each a figure with its bar."""
    median, p90 = statistics.median(errors), quantile(errors, 0.9)
    row = Workload(f"{name}_error_median", "share", [median], [Bar(sense="at most", limit=MEDIAN_MAX)])
    row.more |= {"count": len(errors), "p90": p90, "p90_pass": p90 <= P90_MAX, "worst": max(errors)}
    return row
