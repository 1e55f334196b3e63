"""Files of torch and of safetensors."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import stoker  # noqa: E402

from .conftest import Node  # noqa: E402


@pytest.fixture(autouse=True)
def here(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_DIR", str(node.folder))


def test_what_is_saved_is_loaded(store: stoker.Store, place: str) -> None:
    wanted = {"w": torch.randn(300, 1000), "b": torch.randn(3).to(torch.bfloat16), "epoch": 3, "names": ["a", "b"]}
    receipt = stoker.save(wanted, f"stoker://{place}/model.pt")
    assert receipt.copies == 1 and receipt.size == store.stat(f"{place}/model.pt").size
    found = stoker.load(f"stoker://{place}/model.pt")
    assert found.keys() == wanted.keys() and (found["epoch"], found["names"]) == (3, ["a", "b"])
    assert torch.equal(found["w"], wanted["w"]) and torch.equal(found["b"], wanted["b"])
    plain = torch.load(io.BytesIO(store.read(f"{place}/model.pt")), weights_only=True)
    assert torch.equal(plain["w"], wanted["w"])


class _Own:
    pass


def test_code_in_a_file_is_not_run(store: stoker.Store, place: str) -> None:
    stoker.save({"x": _Own()}, f"{place}/own.pt", store=store)
    with pytest.raises(Exception, match="(?i)weights_only|unsupported global"):
        stoker.load(f"{place}/own.pt", store=store)
    assert isinstance(stoker.load(f"{place}/own.pt", store=store, weights_only=False)["x"], _Own)


def test_files_that_are_none(store: stoker.Store, place: str) -> None:
    with pytest.raises(FileNotFoundError, match="gone.pt"):
        stoker.load(f"{place}/gone.pt", store=store)
    whole = io.BytesIO()
    torch.save({"w": torch.randn(1000)}, whole)
    for data in (b"", b"PK\x03\x04", whole.getvalue()[:2000]):
        store.write(f"{place}/bad.pt", data)
        with pytest.raises(ValueError, match="bad.pt.*not whole"):
            stoker.load(f"{place}/bad.pt", store=store)


class _Breaks:
    def __reduce__(self) -> Any:
        raise RuntimeError("cannot be saved")


def test_a_save_that_fails_leaves_the_file_before(store: stoker.Store, place: str) -> None:
    stoker.save({"x": 1}, f"{place}/model.pt", store=store)
    with pytest.raises(RuntimeError, match="cannot be saved"):
        stoker.save({"w": torch.randn(1 << 20), "x": _Breaks()}, f"{place}/model.pt", store=store)
    assert stoker.load(f"{place}/model.pt", store=store) == {"x": 1}


def test_stoker_itself_needs_no_torch() -> None:
    code = "import sys, stoker; from stoker import *; assert 'torch' not in sys.modules; stoker.safetensors; assert 'torch' in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=120)
    assert done.returncode == 0, done.stderr


# safetensors

KINDS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8", "uint8", "bool"]


def _tensors() -> dict[str, Any]:
    made = {kind: (torch.rand(3, 5) * 100).to(getattr(torch, kind)) for kind in KINDS}
    return {**made, "large": torch.randn(700, 900), "turned": torch.randn(8, 9).t(), "none": torch.empty(0, 3), "one": torch.tensor(3.5)}


def _same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and tensor.shape == other[name].shape, name
        bytes_of = lambda some: some.contiguous().reshape(-1).view(torch.uint8)  # noqa: E731
        assert torch.equal(bytes_of(tensor), bytes_of(other[name])), name


def test_safetensors_both_ways(store: stoker.Store, place: str, tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    wanted = _tensors()
    receipt = stoker.safetensors.save_file(wanted, f"{place}/a.safetensors", {"format": "pt"})
    assert receipt.copies == 1
    _same(stoker.safetensors.load_file(f"{place}/a.safetensors"), wanted)
    (tmp_path / "a").write_bytes(store.read(f"{place}/a.safetensors"))
    _same(library.load_file(tmp_path / "a"), wanted)
    library.save_file({name: one.contiguous() for name, one in wanted.items()}, tmp_path / "b", {"format": "pt"})
    store.write(f"{place}/b.safetensors", (tmp_path / "b").read_bytes())
    _same(stoker.safetensors.load_file(f"{place}/b.safetensors"), wanted)
    with stoker.safetensors.open_file(f"{place}/b.safetensors") as file:
        assert file.metadata() == {"format": "pt"} and set(file.keys()) == set(wanted)


def test_one_tensor_into_its_memory(store: stoker.Store, place: str) -> None:
    wanted = _tensors()
    stoker.safetensors.save_file(wanted, f"{place}/a.safetensors")
    with stoker.safetensors.open_file(f"{place}/a.safetensors") as file:
        into = torch.zeros(700, 900)
        where = into.data_ptr()
        file.read_into("large", into)
        assert into.data_ptr() == where and torch.equal(into, wanted["large"])
        turned = torch.zeros(8, 9).t()
        file.read_into("turned", turned)
        assert torch.equal(turned, wanted["turned"])
        with pytest.raises(ValueError, match="large is torch.float32"):
            file.read_into("large", torch.zeros(7))
        with pytest.raises(KeyError, match="no tensor 'gone'"):
            file.get_tensor("gone")


def _file(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _row(**change: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **change}}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        _file({}, length=1 << 60),
        _file({}, length=50),
        _file(b"not json"),
        _file(b"[" * 100_000),
        _file([]),
        _file({"w": 3}),
        _file(_row(dtype="F33"), bytes(8)),
        _file(_row(shape=[-2]), bytes(8)),
        _file(_row(shape=[1 << 40, 1 << 40]), bytes(8)),
        _file(_row(shape=[True, 2]), bytes(8)),
        _file(_row(data_offsets=[4, 12]), bytes(12)),
        _file(_row(data_offsets=[0, 9]), bytes(9)),
        _file(_row(), bytes(7)),
        _file(_row(), bytes(9)),
        _file({**_row(), "v": _row()["w"]}, bytes(8)),
    ],
    ids=lambda data: f"{len(data)}-{abs(hash(data)) % 97}",
)
def test_damaged_safetensors(store: stoker.Store, place: str, data: bytes) -> None:
    store.write(f"{place}/bad", data)
    with pytest.raises(ValueError, match="bad.*not a safetensors file"):
        stoker.safetensors.open_file(f"{place}/bad", store=store)


def test_tensors_that_safetensors_cannot_have(store: stoker.Store, place: str) -> None:
    for tensors in ({"x": torch.eye(3).to_sparse()}, {"x": torch.zeros(2, dtype=torch.complex128)}, {"__metadata__": torch.ones(1)}):
        with pytest.raises(ValueError):
            stoker.safetensors.save_file(tensors, f"{place}/x", store=store)
    assert not store.exists(f"{place}/x")
