"""Plans in Python: the numbers of the program, refusals by name, the notebook, and predictions against a real node."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import stoker.planner
from stoker.data import Recorder

from .conftest import program
from .test_examples import EXAMPLES


def cli(*args: str) -> Any:
    done = subprocess.run([program(), *args, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_plans_are_those_of_the_program() -> None:
    here = stoker.planner.plan("io", gpus=8, workers=16, sample_size="128KiB", pattern="files")
    there = cli("plan", "io", "--gpus", "8", "--workers", "16", "--sample-size", "128KiB", "--pattern", "files")
    assert here.document == there and here.title == there["title"]
    assert here["utilization"] == there["figures"][0]["value"]
    assert {one["kind"] for one in stoker.planner.models()} == {"io", "design", "sim", "gravity", "kv", "slo"}
    lab = stoker.planner.plan("io", model="lab")
    assert lab.document == cli("plan", "io", "--model", "lab")
    moved = stoker.planner.what_if("class-one", "design")
    assert any(one["name"] == "loss" for one in moved)


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"`gpus`: it cannot be zero.*`patern`.*did you mean `pattern`"):
        stoker.planner.plan("io", gpus=0, patern="files")
    with pytest.raises(ValueError, match="there is no plan `disk`"):
        stoker.planner.plan("disk")
    with pytest.raises(ValueError, match="form 9"):
        stoker.planner.plan("io", calibration={"form": 9})
    with pytest.raises(ValueError, match="did you mean `double-gpus`"):
        stoker.planner.what_if("double-gpu")
    with pytest.raises(ValueError, match="`waited_s`"):
        stoker.planner.explain({"form": 1, "elapsed_s": 1, "samples": 1, "waited_s": -1})


def test_a_recorder_says_what_it_saw(tmp_path: Path) -> None:
    recorder = Recorder(job="none", workers=2)
    with pytest.raises(ValueError, match="nothing was recorded"):
        recorder.record()
    assert list(recorder(iter("abc"))) == ["a", "b", "c"]
    record = recorder.record()
    assert record["batches"] == 3 and 0 <= record["waited_s"] <= record["elapsed_s"]
    with pytest.raises(ValueError, match="negative"):
        Recorder(workers=-1)


def test_the_notebook() -> None:
    if EXAMPLES is None:
        pytest.skip("the folder examples/ is not here")
    cells = json.loads((EXAMPLES / "planner.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), "planner.ipynb", "exec"), names)
    assert "pack the dataset" in said.getvalue() and "62 % of the time waited" in said.getvalue()
    assert "`gpus`: it cannot be zero" in said.getvalue()
