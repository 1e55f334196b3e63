"""fsspec's own conformance tests, and libraries that read and write through it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

fsspec = pytest.importorskip("fsspec")

import fsspec.tests.abstract as abstract  # noqa: E402

from stoker.fs import StokerFileSystem  # noqa: E402

from .conftest import Node  # noqa: E402


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self, node: Node) -> StokerFileSystem:
        return StokerFileSystem(dir=str(node.folder), skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, request: pytest.FixtureRequest) -> str:
        return "data"

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return True


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


@pytest.fixture
def fs(node: Node) -> Iterator[StokerFileSystem]:
    yield StokerFileSystem(dir=str(node.folder))


def test_transactions_show_nothing_before_their_end(fs: StokerFileSystem) -> None:
    with fs.transaction:
        with fs.open("data/transaction/a", "wb") as file:
            file.write(b"a")
        assert not fs.exists("data/transaction/a")
    assert fs.cat("data/transaction/a") == b"a"


def test_a_directory_moves_in_one_step(fs: StokerFileSystem) -> None:
    fs.pipe({"data/moves/a/x": b"1", "data/moves/a/y/z": b"2"})
    fs.mv("data/moves/a", "data/moves/b", recursive=True)
    assert fs.find("data/moves") == ["data/moves/b/x", "data/moves/b/y/z"]
    fs.rm("data/moves", recursive=True)
    assert not fs.exists("data/moves")


def test_pandas_and_pyarrow(fs: StokerFileSystem, node: Node) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"n": range(10_000), "text": [str(n) for n in range(10_000)]})
    options = {"dir": str(node.folder)}
    frame.to_parquet("stoker://data/frames/a.parquet", storage_options=options)
    again = pandas.read_parquet("stoker://data/frames/a.parquet", storage_options=options)
    assert again.equals(frame)
    frame.to_csv("stoker://data/frames/a.csv", index=False, storage_options=options)
    assert len(pandas.read_csv("stoker://data/frames/a.csv", storage_options=options)) == 10_000
