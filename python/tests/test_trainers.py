"""Trainers of other libraries save to Stoker, stop, and go on as if they had never stopped."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import stoker  # noqa: E402
from stoker import data  # noqa: E402

from .conftest import Node, program  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

STEPS, HALF, BATCH, WIDTH = 10, 5, 4, 8


@pytest.fixture(autouse=True)
def by_environment(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    monkeypatch.setenv("STOKER_DIR", str(node.folder))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    # As installed, fsspec knows it already; from a checkout it does not.
    fsspec.register_implementation("stoker", "stoker.fs.StokerFileSystem", clobber=True)


@pytest.fixture
def mount(node: Node, tmp_path: Path) -> Iterator[Path]:
    """The volume `data` as a directory."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("this user may not open /dev/fuse")
    point = tmp_path / "mount"
    point.mkdir()
    # It returns once it is mounted.
    args = [program(), "mount", "data", str(point), "--dir", str(node.folder)]
    done = subprocess.run(args, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"`stoker mount` does not work here: {done.stderr.strip()}")
    yield point
    subprocess.run([program(), "umount", str(point)], check=True)


# Ten steps: data and checkpoints, both from Stoker, and both from a plain directory


def tensor_of(raw: bytes) -> Any:
    return torch.frombuffer(bytearray(raw), dtype=torch.float32)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Samples, one file each."""
    torch.manual_seed(11)
    folder = tmp_path / "tree"
    folder.mkdir()
    for number in range(STEPS * BATCH):
        (folder / f"{number:04}.f32").write_bytes(torch.randn(WIDTH).numpy().tobytes())
    return folder


class Run:
    """A small model that learns to reproduce its input."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(WIDTH, 16), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, WIDTH)]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self, batch: Any) -> float:
        loss = (self.model(batch) - batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "rng": torch.get_rng_state()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])


def test_ten_steps_with_data_and_checkpoints(store: stoker.Store, place: str, tree: Path, tmp_path: Path) -> None:
    packed = store.pack(tree, f"{place}/train")
    source = data.open_seal(packed.seal, store=store)

    def stream() -> Any:
        return data.StreamDataset(
            source, batch_size=BATCH, seed=5, decode=lambda one: tensor_of(one["f32"]), collate=torch.stack
        )

    def loader(dataset: Any) -> Any:
        return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")

    # From Stoker, stopped after half of the steps, in another process as it were.
    first, dataset, losses = Run(1), stream(), []
    for number, batch in enumerate(loader(dataset), 1):
        losses.append(first.step(batch))
        if number == HALF:
            stoker.save({**first.state(), "data": dataset.state_after(number)}, f"{place}/half.pt", store=store)
            break
    second, dataset = Run(2), stream()
    found = stoker.load(f"{place}/half.pt", store=store, weights_only=False)
    second.load(found)
    dataset.load_state_dict(found["data"])
    losses += [second.step(batch) for batch in loader(dataset)]

    # From the directory, in the order that seed and epoch give.
    order = data.Order(STEPS * BATCH, seed=5).samples(range(STEPS * BATCH))
    names = sorted(tree.iterdir())
    batches = [
        torch.stack([tensor_of(names[place].read_bytes()) for place in order[at : at + BATCH]])
        for at in range(0, len(names), BATCH)
    ]
    plain = Run(1)
    # A loader takes a random number of its own, so that there has to be one here, too.
    wanted = [plain.step(batch) for batch in loader(batches[:HALF])]
    torch.save(plain.state(), tmp_path / "half.pt")
    again = Run(3)
    again.load(torch.load(tmp_path / "half.pt", weights_only=False))
    wanted += [again.step(batch) for batch in loader(batches[HALF:])]
    assert losses == wanted and len(losses) == STEPS


# Hugging Face


def hf_run(output: Path, steps: int, resume: bool = False) -> list[float]:
    """Trains a model of a few thousand numbers; the losses of all steps so far."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(config)
    generator = torch.Generator().manual_seed(4)
    rows = [torch.randint(0, 64, (16,), generator=generator) for _ in range(STEPS * BATCH)]
    samples = [{"input_ids": row, "labels": row} for row in rows]
    arguments = transformers.TrainingArguments(
        output_dir=str(output),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        save_steps=HALF,
        save_total_limit=2,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
    )

    class Stop(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        """The job ends before its last step."""

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            control.should_training_stop = state.global_step >= steps

    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=samples, callbacks=[Stop()])
    trainer.train(resume_from_checkpoint=resume or None)
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def test_hugging_face_trainer_on_a_mount(mount: Path, store: stoker.Store, tmp_path: Path) -> None:
    wanted = hf_run(tmp_path / "plain", STEPS)
    output = mount / "hugging-face"
    assert hf_run(output, HALF) == wanted[:HALF]
    names = {one.path.rpartition("/")[2] for one in store.list(f"data/hugging-face/checkpoint-{HALF}")}
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= names
    assert hf_run(output, STEPS, resume=True) == wanted
    assert len(wanted) == STEPS


def test_hugging_face_models_go_through_the_package(store: stoker.Store, place: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, tie_word_embeddings=False)
    model = transformers.GPT2LMHeadModel(config)
    stoker.safetensors.save_file(model.state_dict(), f"{place}/model.safetensors", store=store)
    again = transformers.GPT2LMHeadModel(config)
    again.load_state_dict(stoker.safetensors.load_file(f"{place}/model.safetensors", store=store))
    for name, one in model.state_dict().items():
        assert torch.equal(one, again.state_dict()[name]), name


# Lightning


@pytest.fixture
def lightning() -> Any:
    return pytest.importorskip("lightning")


def lightning_run(lightning: Any, root: str, steps: int, resume: str | None = None) -> list[float]:
    losses: list[float] = []

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Run(1).model

        def training_step(self, batch: Any, number: int) -> Any:
            loss = (self.model(batch[0]) - batch[0]).square().mean()
            losses.append(float(loss))
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    lightning.seed_everything(9, verbose=False)
    rows = torch.randn(STEPS * BATCH, WIDTH, generator=torch.Generator().manual_seed(4))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=BATCH)
    keep = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=f"{root}/checkpoints", filename="step-{step}", every_n_train_steps=HALF, save_top_k=-1, save_last=True
    )
    trainer = lightning.Trainer(
        default_root_dir=root,
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        callbacks=[keep],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader, ckpt_path=resume)
    return losses


def test_lightning_saves_to_a_uri_and_goes_on(lightning: Any, store: stoker.Store, place: str, tmp_path: Path) -> None:
    plain = str(tmp_path / "plain")
    wanted = lightning_run(lightning, plain, HALF)
    wanted += lightning_run(lightning, plain, STEPS, f"{plain}/checkpoints/step-step={HALF}.ckpt")
    root = f"stoker://{place}/run"
    losses = lightning_run(lightning, root, HALF)
    names = {one.path.rpartition("/")[2] for one in store.list(f"{place}/run/checkpoints")}
    assert {f"step-step={HALF}.ckpt", "last.ckpt"} <= names
    losses += lightning_run(lightning, root, STEPS, f"{root}/checkpoints/step-step={HALF}.ckpt")
    assert losses == wanted and len(losses) == STEPS
    assert store.exists(f"{place}/run/checkpoints/step-step={STEPS}.ckpt")
