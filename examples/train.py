#!/usr/bin/env python3
"""A training loop that can be killed at any moment and goes on where it was.

  stoker volume create run --drain on-demand              # drain_every says which checkpoints go to the lake
  python examples/train.py --steps 200
  torchrun --nproc-per-node 2 examples/train.py --steps 200

The dataset is made and packed at the first start. Every `--every` steps a checkpoint is saved while training goes on; a second start
continues from the last one. SIGTERM, which schedulers send before they take a machine away, saves once more and ends well.
"""

import argparse
import json
import os
import signal
import tempfile
import time

import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, default_collate

import stoker
import stoker.torch
from stoker.data import StreamDataset, open_seal

WIDTH = 32


def main() -> None:
    args = parse()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    store = stoker.connect()
    is_first = ranks == 1 or dist.get_rank() == 0
    if is_first:
        make_dataset(store, args.data, args.samples)
    if ranks > 1:
        dist.barrier()

    torch.manual_seed(args.seed)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    source = open_seal(f"{args.data}.seal", store=store)
    dataset = StreamDataset(source, seed=args.seed, batch_size=args.batch, decode=decode, collate=default_collate)
    loader = DataLoader(dataset, batch_size=None, num_workers=args.workers)

    # The fast way to save. The memory for the copies is made once, here; a save then blocks for as long as the copy takes.
    writer = stoker.torch.StokerWriter(
        store=store,
        mode="snapshot",                        # train on as soon as the tensors are copied
        keep_last=args.keep,                    # older ones go, from the lake too ...
        drain_every=args.drain_every or None,   # ... but for every Nth, which is sent there and stays
        deadline=600,                           # a save that is not whole after ten minutes (a rank died) is given up
        overwrite=True,                         # a run that went back replaces the steps that it comes to again, each in one step
    )
    writer.prepare(sum(8192 + 4 * one.nbytes for one in model.parameters()))

    def state(step: int, batches: int) -> dict:
        of_model, of_optimizer = get_state_dict(model, optimizer)
        # What the loop has had, not what workers have read ahead; good for any number of ranks.
        place = json.dumps(dataset.state_after(batches))
        return {"model": of_model, "optimizer": of_optimizer, "step": step, "loader": place}

    first = 0
    found = f"{args.run}/step-{args.resume}/" if args.resume else stoker.torch.latest(f"{args.run}/", store=store)
    if found:
        saved = state(0, 0)
        dcp.load(saved, checkpoint_id=found, storage_reader=stoker.torch.StokerReader(store=store))
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        dataset.load_state_dict(json.loads(saved["loader"]))
        first = saved["step"]
        say(is_first, f"resumed from {found}")

    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append("SIGTERM"))
    step, batches, blocked, under_way = first, 0, 0.0, None
    while step < args.steps:
        for inputs, wanted in loader:
            loss = (model(inputs) - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step, batches = step + 1, batches + 1
            say(is_first, f"step {step} loss {loss.item():.9f}")
            is_last = step == args.steps or bool(stop)
            if step % args.every == 0 or is_last:
                began = time.monotonic()
                where = {"checkpoint_id": f"{args.run}/step-{step}", "storage_writer": writer}
                if args.asynchronous:
                    # torch copies the tensors, into memory that the writer keeps, and saves in a thread. One at a time.
                    if under_way is not None:
                        under_way.result()
                    under_way = dcp.async_save(state(step, batches), **where)
                else:
                    dcp.save(state(step, batches), **where)
                blocked += time.monotonic() - began
            if is_last:
                break
        else:
            dataset.set_epoch(dataset.epoch + 1)
            batches = 0
            continue
        break

    if under_way is not None:
        under_way.result()
    if step > first:
        receipt = writer.wait(timeout=600)      # raises what went wrong, also on other ranks
        say(is_first, f"saved {receipt.path}: {receipt.copies} copies on {', '.join(receipt.nodes)}; training waited {blocked:.3f} s")
    writer.close()
    if ranks > 1:
        dist.destroy_process_group()


def decode(sample: dict) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.frombuffer(bytearray(sample["x"]), dtype=torch.float32), torch.frombuffer(bytearray(sample["y"]), dtype=torch.float32)


def make_dataset(store: stoker.Store, data: str, samples: int) -> None:
    """Many small files become few tar shards and a seal, which says where each sample lies. `stoker pack` does the same."""
    if store.exists(f"{data}.seal"):
        return
    numbers = numpy.random.default_rng(1)
    goal = numbers.standard_normal(WIDTH, dtype=numpy.float32)
    with tempfile.TemporaryDirectory() as folder:
        for sample in range(samples):
            inputs = numbers.standard_normal(WIDTH, dtype=numpy.float32)
            inputs.tofile(f"{folder}/{sample:06}.x")
            numpy.float32(inputs @ goal).tofile(f"{folder}/{sample:06}.y")
        store.pack(folder, data)


def say(is_first: bool, text: str) -> None:
    if is_first:
        print(text, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data/train", help="the dataset, VOLUME/PREFIX")
    parser.add_argument("--run", default="stoker://run", help="where checkpoints go")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that stay")
    parser.add_argument("--drain-every", type=int, default=0, help="every Nth goes to the lake for good; needs a volume that drains on demand")
    parser.add_argument("--async", dest="asynchronous", action="store_true", help="dcp.async_save instead of dcp.save")
    parser.add_argument("--resume", type=int, default=0, metavar="STEP", help="go on from this step instead of the last one")
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    main()
