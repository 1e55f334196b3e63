"""Checkpoints into tensors, by the loader that fills GPUs, here on the host's memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import stoker  # noqa: E402
import stoker.gpu  # noqa: E402
import stoker.safetensors  # noqa: E402


def tensors(seed: int, count: int = 30) -> dict[str, Any]:
    random = torch.Generator().manual_seed(seed)
    sizes = [int(torch.randint(0, 200_000 if number % 7 == 0 else 50, (1,), generator=random)) for number in range(count)]
    return {f"layer.{seed}.{number}": torch.randn(size, generator=random) for number, size in enumerate(sizes)}


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def index(store: stoker.Store, path: str, rows: Any) -> str:
    store.write(f"{path}.index.json", json.dumps(rows).encode())
    return f"{path}.index.json"


def test_a_file_and_what_is_told_of_it(store: stoker.Store, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tensors(1)
    stoker.safetensors.save_file(wanted, f"{place}/a.safetensors", store=store)
    monkeypatch.setenv("STOKER_GPU_CACHE_DIR", str(tmp_path / "cache"))
    reports: list[stoker.gpu.Report] = []
    before = stoker.gpu.stats().loads.get("host", 0)
    for _ in range(2):
        same(stoker.safetensors.load_file(f"{place}/a.safetensors", store=store, cache="1GiB", report=reports.append), wanted)
    assert [one.cache for one in reports] == [["kept"], ["hit"]] and reports[1].bytes_cached == reports[1].bytes
    assert {one.path for one in reports} == {"host"} and stoker.gpu.stats().loads["host"] == before + 2
    # One large read for many small tensors.
    assert reports[0].reads < reports[0].copies


def test_a_checkpoint_in_several_files(store: stoker.Store, place: str) -> None:
    parts = [tensors(seed) for seed in range(3)]
    rows = {}
    for number, part in enumerate(parts):
        name = f"model-{number + 1:05}-of-00003.safetensors"
        stoker.safetensors.save_file(part, f"{place}/{name}", store=store)
        rows |= {tensor: name for tensor in part}
    path = index(store, f"{place}/model.safetensors", {"metadata": {}, "weight_map": rows})
    same(stoker.safetensors.load_file(path, store=store), {name: one for part in parts for name, one in part.items()})
    # Only what the index names.
    rows.pop("layer.1.0")
    path = index(store, f"{place}/less.safetensors", {"weight_map": rows})
    found = stoker.safetensors.load_file(path, store=store)
    assert "layer.1.0" not in found and len(found) == len(rows)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        {},
        {"weight_map": {}},
        {"weight_map": ["a"]},
        {"weight_map": {"a": 3}},
        {"weight_map": {"a": "../a.safetensors"}},
        {"weight_map": {"a": "b/a.safetensors"}},
        {"weight_map": {"a": ".."}},
        {"weight_map": {"a": ""}},
    ],
    ids=lambda rows: f"{abs(hash(str(rows))) % 9973}",
)
def test_damaged_indexes(store: stoker.Store, place: str, rows: Any) -> None:
    with pytest.raises(ValueError, match="not an index"):
        stoker.safetensors.load_file(index(store, f"{place}/x", rows), store=store)


def test_an_index_that_does_not_fit_its_files(store: stoker.Store, place: str) -> None:
    stoker.safetensors.save_file({"w": torch.ones(3)}, f"{place}/a.safetensors", store=store)
    path = index(store, f"{place}/x", {"weight_map": {"w": "a.safetensors", "v": "a.safetensors"}})
    with pytest.raises(ValueError, match="says that v is in it"):
        stoker.safetensors.load_file(path, store=store)
    path = index(store, f"{place}/y", {"weight_map": {"w": "gone.safetensors"}})
    with pytest.raises(FileNotFoundError):
        stoker.safetensors.load_file(path, store=store)


def test_a_device_without_a_fast_way(store: stoker.Store, place: str) -> None:
    assert stoker.gpu.probe("meta")[0] == "plain"
    stoker.safetensors.save_file({"w": torch.ones(3)}, f"{place}/a.safetensors", store=store)
    found = stoker.safetensors.load_file(f"{place}/a.safetensors", device="meta", store=store)
    assert found["w"].device.type == "meta"


def test_tensors_that_cannot_be_filled(store: stoker.Store, place: str) -> None:
    store.write(f"{place}/a", bytes(1000))
    with store.open(f"{place}/a", buffering=0) as file:
        turned = torch.zeros(10, 4).t()
        with pytest.raises(ValueError, match="in one piece"):
            stoker.gpu.fill([file], [(0, 0, turned)], torch.device("cpu"))
        with pytest.raises(ValueError, match="not inside"):
            stoker.gpu.fill([file], [(0, 900, torch.zeros(26))], torch.device("cpu"))
        with pytest.raises(ValueError, match="share bytes"):
            stoker.gpu.fill([file], [(0, 0, torch.zeros(10)), (0, 36, torch.zeros(10))], torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu(store: stoker.Store, place: str) -> None:
    wanted = tensors(5, 100)
    stoker.safetensors.save_file(wanted, f"{place}/a.safetensors", store=store)
    reports: list[stoker.gpu.Report] = []
    found = stoker.safetensors.load_file(f"{place}/a.safetensors", device="cuda", store=store, report=reports.append)
    assert reports[0].path == "pinned" and {one.device.type for one in found.values()} == {"cuda"}
    same({name: one.cpu() for name, one in found.items()}, wanted)
