#!/usr/bin/env python3
"""Weights as safetensors, KV-cache blocks as tensors.

  stoker volume create kvcache --drain never
  python examples/infer_torch.py

`stoker.safetensors` reads and writes the files of the library of that name. Only the tensors that are asked for are read.
"""

import argparse

import torch

import stoker
import stoker.kv
import stoker.safetensors

LAYERS, WIDTH = 4, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="data/model/toy.safetensors")
    parser.add_argument("--cache", default="kvcache/toy-torch")
    args = parser.parse_args()
    store = stoker.connect()
    if not store.exists(args.weights):
        torch.manual_seed(1)
        layers = {f"layer.{number}": torch.randn(WIDTH, WIDTH).to(torch.bfloat16) for number in range(LAYERS)}
        receipt = stoker.safetensors.save_file(layers, args.weights, store=store)
        print(f"weights written: {receipt.copies} copies", flush=True)
    model = stoker.safetensors.load_file(args.weights, store=store)
    # A rank of a parallel model reads its own part into memory that is there, and nothing else.
    part = torch.empty(WIDTH, WIDTH, dtype=torch.bfloat16)
    with stoker.safetensors.open_file(args.weights, store=store) as file:
        file.read_into("layer.2", part)
    assert torch.equal(part, model["layer.2"])

    fingerprint = {"model": "toy", "engine": "infer_torch.py-1", "layout": "NHD", "dtype": "bf16", "parallelism": "tp=1"}
    with stoker.kv.open(args.cache, fingerprint, capacity=1 << 30, memory=64 << 20, store=store) as cache:
        keys = [f"prompt-{number}" for number in range(4)]
        blocks = [torch.empty(2, 16, WIDTH, dtype=torch.bfloat16) for _ in keys]
        hits = cache.exists_many(keys)
        assert None not in cache.get_many(keys[:hits], blocks[:hits])
        for number in range(hits, len(keys)):
            start = torch.full((2, 16, WIDTH), float(number), dtype=torch.bfloat16)
            blocks[number].copy_(start @ part)
        cache.put_many(keys[hits:], blocks[hits:], commit=True)
        total = sum(block.double().sum().item() for block in blocks)
        print(f"{len(keys) - hits} blocks computed, {hits} from the cache; sum {total:.3f}", flush=True)


if __name__ == "__main__":
    main()
