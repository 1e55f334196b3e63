"""The benchmarks run, with sizes that say nothing about speed, and what they print has its shape."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from stoker.bench.__main__ import main
from stoker.bench.ground import parse_size
from stoker.bench.report import Bar, Report, Workload, forth_and_back
from stoker.bench.svg import picture

from .conftest import program

TINY = {
    "loader": ["--small", "200", "--small-size", "4KiB", "--large", "8", "--large-size", "128KiB", "--workers", "2"],
    "checkpoint": ["--size", "8MiB", "--tensors", "4"],
    "kv": ["--sizes", "16KiB", "64KiB", "--bytes", "4MiB", "--depth", "4"],
}
#: Sides that need no library beside the package.
ALWAYS = {
    "loader": ["small_raw_read", "small_native_block", "small_native_single", "large_native_block"],
    "checkpoint": [],
    "kv": ["16kib_raw_read", "16kib_files_get", "64kib_files_exists_256"],
}
if importlib.util.find_spec("torch"):
    TINY["gpu"] = ["--size", "8MiB", "--shards", "2", "--device", "cpu"]
    ALWAYS["gpu"] = ["raw", "loader_plain", "stoker_cold", "stoker_keep", "stoker_warm"]
ROW = {"name", "unit", "figure", "figure_min", "figure_max", "rounds", "ratios", "bar", "pass", "skipped"}
RATIO = {"to", "ratio", "ratio_min", "ratio_max", "bar", "pass"}


def run(bench: str, folder: Path, *more: str) -> dict[str, Any]:
    picture = folder / "picture.svg"
    args = [sys.executable, "-m", "stoker.bench", bench, *TINY[bench], "--rounds", "1", "--ring", "256MiB", "--json"]
    args += ["--dir", str(folder), "--svg", str(picture), *more]
    environment = {**os.environ, "STOKER_BIN": program(), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(args, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr
    ElementTree.fromstring(picture.read_text())
    picture.unlink()
    # Everything else was in a folder that is gone.
    assert list(folder.iterdir()) == []
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("bench", sorted(TINY))
def test_a_bench_prints_one_document(bench: str, tmp_path: Path) -> None:
    said = run(bench, tmp_path)
    assert set(said) == {"bench", "workloads", "machine"} and said["bench"] == bench
    assert {"kernel", "cpus", "cpu", "filesystem", "stoker", "load_average"} <= set(said["machine"])
    rows = {row["name"]: row for row in said["workloads"]}
    assert len(rows) == len(said["workloads"])
    for row in rows.values():
        assert set(row) >= ROW
        # Measured, or left out for a reason.
        assert (row["figure"] is None) == bool(row["skipped"]), row
        for ratio in row["ratios"]:
            assert set(ratio) == RATIO
            assert ratio["to"] is None or ratio["to"] in rows or ratio["ratio"] is None
    for name in ALWAYS[bench]:
        assert rows[name]["figure"] > 0, rows[name]


def test_a_checkpoint_of_two_nodes_has_its_class(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    said = run("checkpoint", tmp_path, "--nodes", "2")
    assert said["machine"]["class"] == "two"
    committed = next(row for row in said["workloads"] if row["name"] == "stream_committed")
    assert committed["figure"] > 0 and committed["pass"] is None


def test_what_cannot_be_measured_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kv", "--dir", str(tmp_path / "nowhere")]) == 1
    assert "directory on the drive" in capsys.readouterr().err
    assert main(["kv", "--bytes", "4000000GiB", "--dir", str(tmp_path)]) == 1
    assert "choose smaller sizes" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["kv", "--bytes", "much"])


# The report


def test_ratios_are_of_neighbouring_rounds() -> None:
    report = Report("x")
    report.add(Workload("raw", "mb_s", [100.0, 50.0, 80.0]))
    report.add(Workload("ours", "mb_s", [90.0, 60.0, 40.0], bars=[Bar("raw", limit=0.8), Bar("gone", limit=2.0)]))
    report.add(Workload("left", "mb_s", skipped="no library"))
    raw, ours, left = report.json()["workloads"]
    assert ours["figure"] == 60.0 and ours["ratios"][0]["ratio"] == 0.9 and ours["ratios"][0]["pass"] is True
    # What was not measured is not judged, and hides nothing.
    assert ours["ratios"][1]["ratio"] is None and ours["ratios"][1]["pass"] is None and ours["pass"] is True
    assert raw["pass"] is None and left["figure"] is None and left["skipped"] == "no library"
    table = report.table()
    assert "0.90x raw" in table and "skipped: no library" in table
    assert len(ElementTree.fromstring(picture(report))) > 5


def test_bars_have_two_senses() -> None:
    assert Bar(None, "at most", 100.0).passes(99.0) is True
    assert Bar(None, "at most", 100.0).passes(101.0) is False
    assert Bar("raw", "at least", 0.9).passes(0.8) is False
    assert Bar("raw").passes(0.0) is None


def test_rounds_go_forth_and_back() -> None:
    seen: list[str] = []
    forth_and_back(2, [lambda: seen.append("a"), lambda: seen.append("b")])
    assert seen == ["a", "b", "b", "a"]


@pytest.mark.parametrize(("text", "size"), [("16KiB", 16 << 10), ("2GiB", 2 << 30), ("4096", 4096), ("1.5m", 3 << 19)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
