#!/usr/bin/env python3
"""The training loop of train.py without torch: plain arrays, a stream of samples, checkpoint sets.

  python examples/train_numpy.py --steps 40

Every `--every` steps the arrays are copied and a thread writes them as a checkpoint set, while training goes on. Kill it and start it
again: it continues from the last complete checkpoint.
"""

import argparse
import json
import tempfile
import threading

import numpy

import stoker
from stoker.data import Stream, open_seal

WIDTH = 32


class Saver:
    """One save at a time, in a thread: the next one waits for the one before, and raises what went wrong with it."""

    def __init__(self, store: stoker.Store, run: str, keep: int) -> None:
        self.store, self.run, self.keep = store, run, keep
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None

    def save(self, step: int, weights: numpy.ndarray, loader: dict) -> None:
        self.wait()
        copy, progress = weights.copy(), json.dumps({"step": step, "loader": loader}).encode()
        self._thread = threading.Thread(target=self._save, args=(step, copy, progress))
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
        if self._fault is not None:
            raise self._fault

    def _save(self, step: int, weights: numpy.ndarray, progress: bytes) -> None:
        try:
            # Visible as a whole or not at all. One of the same name, of a run that went back, is replaced in one step.
            # The owner is the job, so one that was killed in the middle of a save goes on with it.
            path = f"{self.run}/step-{step:06}"
            made = self.store.begin_set(path, shards=2, owner=self.run, deadline=600, overwrite=True)
            made.write(0, weights, "weights")
            made.write(1, progress, "progress.json")
            made.publish()
            steps = [one for one in self.store.list(self.run) if one.name.startswith("step-")]
            for old in steps[: -self.keep]:
                self.store.remove(*(file.path for file in self.store.list(old.path, recursive=True)))
        except BaseException as fault:
            self._fault = fault


def main() -> None:
    args = parse()
    store = stoker.connect()
    make_dataset(store, args.data, args.samples)
    stream = Stream(open_seal(f"{args.data}.seal", store=store), seed=7, batch_size=32, decode=decode)
    weights, step = numpy.zeros(WIDTH, dtype=numpy.float32), 0

    found = f"stoker://{args.run}/step-{args.resume:06}/" if args.resume else store.latest(f"{args.run}/")
    if found:
        with store.open(found + "weights", buffering=0) as file:
            file.readinto(weights)              # straight into the array
        progress = json.loads(store.read(found + "progress.json"))
        stream.load_state_dict(progress["loader"])
        step = progress["step"]
        print(f"resumed from {found}", flush=True)

    saver = Saver(store, args.run, args.keep)
    while step < args.steps:
        for batch in stream:
            inputs, wanted = (numpy.stack(column) for column in zip(*batch))
            error = inputs @ weights - wanted[:, 0]
            weights -= 0.05 * inputs.T @ error / len(batch)
            step += 1
            print(f"step {step} loss {numpy.square(error).mean():.9f}", flush=True)
            if step % args.every == 0 or step == args.steps:
                saver.save(step, weights, stream.state_dict())
            if step == args.steps:
                break
        else:
            stream.set_epoch(stream.epoch + 1)
    saver.wait()
    last = store.latest(f"{args.run}/")
    receipt = store.receipt(f"{last}weights")
    print(f"saved {last}: {receipt.copies} copies", flush=True)


def decode(sample: dict) -> tuple[numpy.ndarray, numpy.ndarray]:
    return numpy.frombuffer(sample["x"], numpy.float32), numpy.frombuffer(sample["y"], numpy.float32)


def make_dataset(store: stoker.Store, data: str, samples: int) -> None:
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


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data/train", help="the dataset, VOLUME/PREFIX")
    parser.add_argument("--run", default="data/run", help="where checkpoints go, VOLUME/PREFIX")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that stay")
    parser.add_argument("--resume", type=int, default=0, metavar="STEP", help="go on from this step instead of the last one")
    parser.add_argument("--samples", type=int, default=512)
    return parser.parse_args()


if __name__ == "__main__":
    main()
