"""Training goes on from Stoker exactly as from a plain directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402

import stoker  # noqa: E402
import stoker.torch as st  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Run:
    """A small model, its optimizer and its random numbers."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4)]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def steps(self, count: int) -> list[float]:
        losses = []
        for _ in range(count):
            loss = (self.model(torch.randn(8, 16)) - 1).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "rng": torch.get_rng_state()}

    def resume(self, **where: Any) -> None:
        state = self.state()
        dcp.load(state, **where)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        torch.set_rng_state(state["rng"])


@pytest.mark.parametrize("mode", ["stream", "snapshot"])
def test_ten_steps_from_stoker_and_from_a_directory(store: stoker.Store, place: str, tmp_path: Path, mode: Any) -> None:
    first = Run(1)
    first.steps(5)
    writer = st.StokerWriter(store=store, mode=mode)
    dcp.save(first.state(), checkpoint_id=f"stoker://{place}/step-5", storage_writer=writer)
    dcp.save(first.state(), checkpoint_id=tmp_path / "step-5")
    wanted = first.steps(10)
    writer.wait()
    from_stoker, from_directory = Run(2), Run(3)
    latest = st.latest(f"{place}/", store=store)
    from_stoker.resume(checkpoint_id=latest, storage_reader=st.StokerReader(store=store))
    losses = from_stoker.steps(10)
    from_directory.resume(checkpoint_id=tmp_path / "step-5")
    assert losses == from_directory.steps(10) == wanted


def test_ten_steps_from_torch_save(store: stoker.Store, place: str) -> None:
    first = Run(1)
    first.steps(5)
    state = {"model": first.model.state_dict(), "optimizer": first.optimizer.state_dict(), "rng": torch.get_rng_state()}
    stoker.save(state, f"{place}/run.pt", store=store)
    stoker.safetensors.save_file(first.model.state_dict(), f"{place}/run.safetensors", store=store)
    wanted = first.steps(10)
    again = Run(2)
    found = stoker.load(f"{place}/run.pt", store=store)
    again.model.load_state_dict(stoker.safetensors.load_file(f"{place}/run.safetensors", store=store))
    again.optimizer.load_state_dict(found["optimizer"])
    torch.set_rng_state(found["rng"])
    assert again.steps(10) == wanted
