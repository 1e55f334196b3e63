"""What ``torch.save`` writes around the bytes of a tensor.

A shard keeps torch's own format, so that ``torch.distributed.checkpoint`` reads it from a mount or from the lake without us. But
the bytes of a tensor are not sent through torch's zip writer: that would copy and checksum them once more. torch writes the
container of an empty tensor of the same kind, with a hole; the bytes go into the hole.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

try:
    from torch.serialization import skip_data
except ImportError:  # pragma: no cover - depends on the torch that is installed
    raise ImportError(f"stoker.torch needs torch 2.6 or later; this is {torch.__version__}") from None


@dataclass(frozen=True)
class Container:
    """``head``, then ``hole`` bytes of the tensor, then ``tail``: a file that ``torch.load`` reads."""

    head: bytes
    hole: int
    tail: bytes

    @property
    def size(self) -> int:
        return len(self.head) + self.hole + len(self.tail)


class _Recorder:
    """A file that keeps what is written and remembers what is skipped."""

    def __init__(self) -> None:
        self.parts: list[bytearray] = [bytearray()]
        self.holes: list[int] = []

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.parts[-1] += view
        return view.nbytes

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence != 1:
            raise OSError("torch seeks in a way that is not known; use another release of torch")
        self.holes.append(offset)
        self.parts.append(bytearray())
        return self.tell()

    def tell(self) -> int:
        return sum(self.holes) + sum(map(len, self.parts))

    def flush(self) -> None:
        pass


@functools.lru_cache(maxsize=1024)
def container(dtype: torch.dtype, shape: tuple[int, ...]) -> Container:
    """The container of a contiguous tensor. No memory of the tensor's size is touched."""
    count = 1
    for length in shape:
        count *= length
    size = count * dtype.itemsize
    # Not `torch.empty`: with deterministic algorithms that one writes to the memory.
    empty = torch.empty(0, dtype=dtype).set_(torch.UntypedStorage(size), 0, shape, _strides(shape))
    recorder = _Recorder()
    with skip_data():
        torch.save(empty, recorder)  # type: ignore[arg-type]
    if sum(recorder.holes) != size or len(recorder.holes) > 1:
        raise OSError(f"torch {torch.__version__} writes tensors in a way that is not known")
    head, tail = recorder.parts if recorder.holes else (recorder.parts[0], b"")
    return Container(bytes(head), size, bytes(tail))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the bytes of a tensor say all of it; sparse and quantized ones are left to ``torch.save``."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and tensor.device.type != "meta"
    )
