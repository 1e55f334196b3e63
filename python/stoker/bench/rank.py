"""One rank of the checkpoint benchmark: ``python -m stoker.bench.rank CONFIG``. Rank 0 prints what all of them found."""

from __future__ import annotations

import datetime
import json
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist

from .ground import say
from .node import Unavailable
from .report import forth_and_back
from .saving import SIDES, Memory, Side

PATIENCE = datetime.timedelta(minutes=30)


def _state(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Tensors of this rank alone, with bytes that do not repeat."""
    each = config["size"] // config["tensors"]
    generator = torch.Generator().manual_seed(config["rank"])
    state = {}
    for number in range(config["tensors"]):
        data = torch.empty(each // 8, dtype=torch.int64).random_(generator=generator)
        state[f"rank-{config['rank']}.layer-{number}"] = data.view(torch.bfloat16)
    return state


def _together(value: Any) -> list[Any]:
    """What all ranks have to say."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


class Series:
    """All saves of one side."""

    def __init__(self, name: str, config: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
        self.name, self.config, self.state = name, config, state
        self.side: Side | None = None
        self.found: dict[str, Any] = {"blocked": [], "committed": [], "rss": 0, "pss": 0, "skipped": None, "staging": None}
        self._number = 0

    def warm_up(self) -> None:
        """The first save, which is not timed: memory is looked at, which costs time, and what is kept is made."""
        self._say("first save, for memory")
        why = None
        with Memory() as memory:
            try:
                self.side = SIDES[self.name](self.config, self.state)
            except Unavailable as fault:
                why = str(fault)
            skipped = next((one for one in _together(why) if one), None)
            if skipped or self.side is None:
                self.found["skipped"], self.side = skipped, None
                return
            self._save(self.side)
        self.found["staging"] = self.side.staging
        self.found["rss"] = max(_together(memory.rss))
        self.found["pss"] = max(_together(memory.pss))

    def round(self) -> None:
        """A timed save."""
        if self.side is None:
            return
        self._say(f"round {len(self.found['blocked']) + 1} of {self.config['rounds']}")
        blocked, committed = self._save(self.side)
        self.found["blocked"].append(blocked)
        self.found["committed"].append(committed)

    def close(self) -> None:
        if self.side is not None:
            self.side.close()
            self.side = None

    def _save(self, side: Side) -> tuple[float, float]:
        number, self._number = self._number, self._number + 1
        side.begin()
        dist.barrier()
        saved = side.save(number)
        both = _together((saved.blocked, saved.committed))
        side.end()
        side.remove(number)
        dist.barrier()
        # The job goes on when its slowest rank does.
        return max(one[0] for one in both), max(one[1] for one in both)

    def _say(self, what: str) -> None:
        if self.config["rank"] == 0:
            say(f"{self.name}: {what}")


def main(config: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    meet = f"file://{config['meet']}"
    dist.init_process_group("gloo", init_method=meet, rank=config["rank"], world_size=config["ranks"], timeout=PATIENCE)
    state = _state(config)
    all_series = [Series(name, config, state) for name in config["sides"]]
    for series in all_series:
        series.warm_up()
    forth_and_back(config["rounds"], [series.round for series in all_series])
    for series in all_series:
        series.close()
    if config["rank"] == 0:
        found = {series.name: series.found for series in all_series}
        print(json.dumps({"sides": found, "torch": torch.__version__}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
