"""Libraries that people use for tables, with `stoker://` as they would write it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import stoker

from .conftest import Node

pytest.importorskip("fsspec")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def by_environment(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody wants to name a node in each call."""
    import fsspec

    monkeypatch.setenv("STOKER_DIR", str(node.folder))
    # As installed, fsspec knows it already; from a checkout it does not.
    fsspec.register_implementation("stoker", "stoker.fs.StokerFileSystem", clobber=True)


@pytest.fixture
def frame() -> Any:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    return pandas.DataFrame({"n": range(5_000), "even": [n % 2 == 0 for n in range(5_000)], "text": [f"line {n}" for n in range(5_000)]})


def test_pandas(frame: Any, place: str) -> None:
    import pandas

    for kind in ("parquet", "csv", "feather"):
        path = f"stoker://{place}/a.{kind}"
        getattr(frame, f"to_{kind}")(path, **({"index": False} if kind == "csv" else {}))
        assert getattr(pandas, f"read_{kind}")(path).equals(frame)
    assert pandas.read_parquet(f"stoker://{place}/a.parquet", columns=["n"], filters=[("n", "<", 7)])["n"].tolist() == list(range(7))
    with pytest.raises(FileNotFoundError, match="nothing.parquet"):
        pandas.read_parquet(f"stoker://{place}/nothing.parquet")


def test_pyarrow_datasets_with_partitions(frame: Any, store: stoker.Store, place: str) -> None:
    import fsspec
    import pyarrow
    import pyarrow.dataset
    import pyarrow.parquet

    fs = fsspec.filesystem("stoker")
    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    pyarrow.parquet.write_to_dataset(table, f"{place}/parts", partition_cols=["even"], filesystem=fs)
    names = [one.path for one in store.list(f"{place}/parts", recursive=True) if not one.path.endswith("/")]
    assert len(names) == 2 and any("even=true" in name for name in names)
    found = pyarrow.dataset.dataset(f"{place}/parts", filesystem=fs, partitioning="hive")
    rows = found.to_table(filter=pyarrow.dataset.field("even") == "true")
    assert sorted(rows["n"].to_pylist()) == list(range(0, 5_000, 2))
    # Row groups are fetched by themselves.
    pyarrow.parquet.write_table(table, f"{place}/a.parquet", row_group_size=500, filesystem=fs)
    with fs.open(f"{place}/a.parquet") as file:
        assert pyarrow.parquet.ParquetFile(file).read_row_group(3)["n"].to_pylist() == list(range(1500, 2000))


# Hugging Face datasets


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Any]:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    library = pytest.importorskip("datasets")
    library.disable_progress_bars()
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    yield library


def test_datasets_save_and_load(datasets: Any, store: stoker.Store, place: str) -> None:
    made = datasets.Dataset.from_dict({"n": list(range(1000)), "text": [f"line {n}" for n in range(1000)]})
    made.save_to_disk(f"stoker://{place}/saved", num_shards=3)
    assert sum(one.path.endswith(".arrow") for one in store.list(f"{place}/saved")) == 3
    again = datasets.load_from_disk(f"stoker://{place}/saved")
    assert again["n"] == made["n"] and again[7]["text"] == "line 7"


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_load_parquet(datasets: Any, place: str, streaming: bool, tmp_path: Any) -> None:
    made = datasets.Dataset.from_dict({"n": list(range(1000))})
    place = place.replace("[", "-").replace("]", "")
    for part in range(2):
        made.shard(2, part, contiguous=True).to_parquet(f"stoker://{place}/part-{part}.parquet")
    files = [f"stoker://{place}/part-{part}.parquet" for part in range(2)]
    found = datasets.load_dataset("parquet", data_files={"train": files}, streaming=streaming, cache_dir=str(tmp_path / "c"))
    assert [row["n"] for row in found["train"]] == list(range(1000))
    whole = datasets.load_dataset("parquet", data_files=f"stoker://{place}/*.parquet", streaming=streaming, cache_dir=str(tmp_path / "d"))
    assert sum(1 for _ in whole["train"]) == 1000

