"""safetensors files: read in large pieces straight into the tensors, of a GPU too, or one by one as they are asked for.

>>> stoker.safetensors.save_file({"w": w}, "stoker://run/model.safetensors")
>>> stoker.safetensors.load_file("stoker://run/model.safetensors", device="cuda")["w"]
>>> stoker.safetensors.load_file("stoker://run/model.safetensors.index.json")  # all shards that it names
>>> with stoker.safetensors.open_file("stoker://run/model.safetensors") as file:
...     file.read_into("w", w)

The format is the one of the library ``safetensors``, which is not needed for it.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from . import gpu, paths
from .connecting import connect
from .files import Reader
from .receipts import Receipt
from .store import Path, Store

#: Longest header, as the library has it.
HEADER_MAX = 100_000_000
#: How the index of a checkpoint in several files ends.
INDEX = ".index.json"
#: Most files of a checkpoint.
SHARDS_MAX = 10_000

_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, of_torch)
    for name, of_torch in {
        "F64": "float64",
        "F32": "float32",
        "F16": "float16",
        "BF16": "bfloat16",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2",
        "I64": "int64",
        "I32": "int32",
        "I16": "int16",
        "I8": "int8",
        "U8": "uint8",
        "U16": "uint16",
        "U32": "uint32",
        "U64": "uint64",
        "BOOL": "bool",
        "C64": "complex64",
    }.items()
    if hasattr(torch, of_torch)
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def save_file(
    tensors: Mapping[str, torch.Tensor],
    path: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    store: Store | None = None,
) -> Receipt:
    """Writes tensors; the file is there, whole and durable, when this returns. Tensors that are not in main memory are copied
    there one at a time."""
    header: dict[str, Any] = {}
    if metadata is not None:
        if not all(isinstance(key, str) and isinstance(value, str) for key, value in metadata.items()):
            raise TypeError("the metadata of a safetensors file is text by text")
        header["__metadata__"] = dict(metadata)
    # As the library does it: the widest first, so that each one lies at a multiple of its width.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    at = 0
    for name in order:
        tensor = tensors[name]
        if name == "__metadata__":
            raise ValueError("a tensor cannot be called __metadata__")
        if tensor.dtype not in _NAMES or tensor.layout != torch.strided:
            raise ValueError(f"{name}: safetensors knows no {tensor.layout} tensors of {tensor.dtype}")
        shape, end = list(tensor.shape), at + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_MAX:
        raise ValueError(f"{path}: {len(tensors)} tensors are too many for one safetensors file")
    with (store or connect()).open(path, "wb", size=8 + len(text) + at) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            plain = tensors[name].detach().cpu().resolve_conj().resolve_neg().contiguous()
            if plain.nbytes:
                file.write(plain.reshape(-1).view(torch.uint8).numpy())
    assert file.receipt is not None
    return file.receipt


def load_file(
    path: Path,
    device: str | torch.device = "cpu",
    *,
    store: Store | None = None,
    cache: int | str | None = None,
    report: Callable[[gpu.Report], object] | None = None,
) -> dict[str, torch.Tensor]:
    """All tensors of a file, or of all files that an index (``...index.json``) names.

    They are read in the order of the file, many pieces at once, into tensors that are on the device from the beginning.
    ``cache`` keeps the files in main memory for the next load (:mod:`stoker.gpu`); ``report`` is called with what was done.
    """
    store = store or connect()
    place = torch.device(device)
    shards = _shards(path, store) if str(path).endswith(INDEX) else {str(path): None}
    files: list[SafeFile] = []
    try:
        for shard in shards:
            files.append(open_file(shard, store=store))
        made: dict[str, torch.Tensor] = {}
        places = []
        for number, (file, names) in enumerate(zip(files, shards.values())):
            for name in file._wanted(names):
                entry = file._entry(name)
                if name in made:
                    raise ValueError(f"{path}: {name} is in two files")
                made[name] = torch.empty(entry.shape, dtype=entry.dtype, device=place)
                places.append((number, file._data + entry.start, made[name]))
        done = gpu.fill([file._file for file in files], places, place, cache)
    finally:
        for file in files:
            file.close()
    if report is not None:
        report(done)
    return made


def _shards(path: Path, store: Store) -> dict[str, set[str] | None]:
    """The files of a checkpoint, and which tensors each of them has."""

    def bad(why: str) -> ValueError:
        return ValueError(f"{path}: not an index of safetensors files, or a damaged one: {why}")

    volume, key = paths.split_file(path)
    with store.open(path, "rb", buffering=0) as file:
        if file.size > HEADER_MAX:
            raise bad(f"it has {file.size} bytes")
        try:
            said = json.loads(file.read())
        except (ValueError, RecursionError) as fault:
            raise bad(f"it is no JSON: {fault}") from None
    rows = said.get("weight_map") if isinstance(said, dict) else None
    if not isinstance(rows, dict) or not rows:
        raise bad("it has no weight_map")
    folder, slash, _ = paths.join(volume, key).rpartition("/")
    shards: dict[str, set[str] | None] = {}
    for name, shard in sorted(rows.items(), key=lambda row: str(row[1])):
        # A file beside the index, never one of another place.
        if not isinstance(shard, str) or shard in ("", ".", "..") or "/" in shard or "\0" in shard:
            raise bad(f"{name} is in the file {shard!r}")
        tensors = shards.setdefault(folder + slash + shard, set())
        assert tensors is not None
        tensors.add(name)
    if len(shards) > SHARDS_MAX:
        raise bad(f"it names {len(shards)} files")
    return shards


def open_file(path: Path, *, store: Store | None = None) -> SafeFile:
    """Opens a file: its header is read and checked, no tensor is."""
    return SafeFile((store or connect()).open(path, "rb", buffering=0))


@dataclass(frozen=True)
class _Entry:
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


class SafeFile:
    """A safetensors file whose tensors are read when they are asked for."""

    def __init__(self, file: Reader) -> None:
        self._file = file
        self._entries, self._metadata, self._data = _header(file)

    def __enter__(self) -> SafeFile:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def keys(self) -> Iterable[str]:
        """Names of the tensors."""
        return list(self._entries)

    def metadata(self) -> dict[str, str]:
        """What the writer said of the file."""
        return dict(self._metadata)

    def _wanted(self, names: set[str] | None) -> list[str]:
        """Those of the tensors that are wanted; all of them must be there."""
        if names is not None and (lacking := names - self._entries.keys()):
            raise ValueError(f"{self._file.name}: the index says that {min(lacking)} is in it, and it is not")
        return [name for name in self._entries if names is None or name in names]

    def _entry(self, name: str) -> _Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise KeyError(f"{self._file.name}: there is no tensor {name!r}; there are {len(self._entries)}") from None

    def get_tensor(self, name: str, device: str | torch.device = "cpu") -> torch.Tensor:
        """A tensor of the file."""
        entry = self._entry(name)
        made = torch.empty(entry.shape, dtype=entry.dtype)
        self.read_into(name, made)
        return made.to(device)

    def read_into(self, name: str, tensor: torch.Tensor) -> None:
        """Fills a tensor that exists. It has the shape and kind of the stored one; in main memory and in one piece it is filled
        without a copy."""
        entry = self._entry(name)
        if tuple(tensor.shape) != entry.shape or tensor.dtype != entry.dtype:
            stored = f"{entry.dtype} {list(entry.shape)}"
            raise ValueError(f"{self._file.name}: {name} is {stored}, the tensor is {tensor.dtype} {list(tensor.shape)}")
        if entry.start == entry.end:
            return
        own = tensor.detach()
        straight = own.is_cpu and own.is_contiguous() and not own.is_conj() and not own.is_neg()
        plain = own if straight else torch.empty(entry.shape, dtype=entry.dtype)
        into = plain.reshape(-1).view(torch.uint8).numpy()
        if self._file.readinto_at(into, self._data + entry.start) != entry.end - entry.start:
            raise ValueError(f"{self._file.name}: it ends inside of {name}")
        if not straight:
            own.copy_(plain)


def _header(file: Reader) -> tuple[dict[str, _Entry], dict[str, str], int]:
    def bad(why: str) -> ValueError:
        return ValueError(f"{file.name}: not a safetensors file, or a damaged one: {why}")

    if file.size < 8:
        raise bad(f"it has {file.size} bytes")
    (length,) = struct.unpack("<Q", file.read_at(0, 8))
    if length > HEADER_MAX or 8 + length > file.size:
        raise bad(f"a header of {length} bytes in a file of {file.size}")
    try:
        said = json.loads(file.read_at(8, length))
    except (ValueError, RecursionError) as fault:
        raise bad(f"its header is no JSON: {fault}") from None
    if not isinstance(said, dict):
        raise bad("its header is no object")
    metadata = said.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise bad("its metadata is no object")
    size, at, entries = file.size - 8 - length, 0, {}
    try:
        rows = [(name, _entry_of(row)) for name, row in said.items()]
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise bad(f"its header has {fault}") from None
    for name, entry in sorted(rows, key=lambda row: (row[1].start, row[1].end)):
        # One behind the other and nothing between: then no two overlap, and nothing is hidden.
        if entry.start != at or entry.end - entry.start != math.prod(entry.shape) * entry.dtype.itemsize:
            raise bad(f"{name} has bytes {entry.start} to {entry.end}")
        at = entry.end
        entries[name] = entry
    if at != size:
        raise bad(f"it has {size} bytes of tensors and speaks of {at}")
    return {name: entries[name] for name, _ in rows}, metadata, 8 + length


def _entry_of(row: Any) -> _Entry:
    shape, (start, end) = row["shape"], row["data_offsets"]
    for number in (*shape, start, end):
        if type(number) is not int or not 0 <= number < 1 << 62:
            raise ValueError(f"the number {number!r}")
    if row["dtype"] not in _DTYPES:
        raise ValueError(f"the kind {row['dtype']!r}, which this torch does not know")
    return _Entry(_DTYPES[row["dtype"]], tuple(shape), start, end)
