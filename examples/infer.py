#!/usr/bin/env python3
"""Inference: weights at drive speed, and KV-cache blocks that outlive the process.

  stoker volume create kvcache --drain never              # blocks can be made again: the lake need not have them
  python examples/infer.py                                # computes the blocks of the prompts
  python examples/infer.py                                # finds them

The model is a toy; what it does with Stoker is what an engine does. A block holds the keys and values of 16 tokens and is named by
the hash of all tokens up to its end, so prompts that begin alike share blocks. LMCache users need none of this: `stoker.lmcache`.
"""

import argparse
import hashlib

import numpy

import stoker
import stoker.kv

WIDTH, LAYERS, BLOCK = 64, 4, 16
SYSTEM = "You are a helpful assistant. Answer briefly and say so if you do not know. " * 4
PROMPTS = ["What is a ring buffer?", "Why do checkpoints block?", "How many copies of a file are there?"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="data/model/toy.bin")
    parser.add_argument("--cache", default="kvcache/toy")
    args = parser.parse_args()
    store = stoker.connect()
    weights = load_weights(store, args.weights)
    # Blocks of another model, type or layout are never found.
    fingerprint = {"model": "toy", "engine": "infer.py-1", "layout": "LKV", "dtype": "float32", "parallelism": "tp=1"}
    with stoker.kv.open(args.cache, fingerprint, capacity=1 << 30, memory=64 << 20, store=store) as cache:
        computed = found = 0
        for prompt in PROMPTS:
            blocks, hits = prefill(cache, weights, SYSTEM + prompt)
            computed, found = computed + len(blocks) - hits, found + hits
            digest = hashlib.sha256(b"".join(block.tobytes() for block in blocks)).hexdigest()
            print(f"{digest[:16]}  {prompt}", flush=True)
        print(f"{computed} blocks computed, {found} from the cache", flush=True)


def prefill(cache: stoker.kv.Cache, weights: numpy.ndarray, text: str) -> tuple[list[numpy.ndarray], int]:
    """Keys and values of all whole blocks of a text, and how many of them the cache had."""
    tokens = numpy.frombuffer(text.encode(), numpy.uint8)
    tokens = tokens[: len(tokens) // BLOCK * BLOCK]
    names, chain = [], hashlib.sha256()
    for start in range(0, len(tokens), BLOCK):
        chain.update(tokens[start : start + BLOCK].tobytes())
        names.append(chain.digest())
    hits = cache.exists_many(names)             # the longest prefix that is there; looks at memory alone
    blocks = [numpy.empty((LAYERS, 2, BLOCK, WIDTH), numpy.float32) for _ in names]
    lengths = cache.get_many(names[:hits], blocks[:hits])
    if None in lengths:                         # gone since, or damaged: a miss, never wrong bytes
        hits = lengths.index(None)
    for at in range(hits, len(names)):
        blocks[at][:] = compute(weights, tokens[at * BLOCK : (at + 1) * BLOCK])
    # With commit they are durable when this returns; without, a block is written when it is wanted a second time.
    cache.put_many(names[hits:], blocks[hits:], commit=True)
    return blocks, hits


def compute(weights: numpy.ndarray, tokens: numpy.ndarray) -> numpy.ndarray:
    hidden = numpy.eye(256, WIDTH, dtype=numpy.float32)[tokens]
    layers = []
    for layer in range(LAYERS):
        layers.append([hidden @ weights[layer, 0], hidden @ weights[layer, 1]])
        hidden = numpy.tanh(hidden @ weights[layer, 2])
    return numpy.array(layers, numpy.float32)


def load_weights(store: stoker.Store, path: str) -> numpy.ndarray:
    weights = numpy.empty((LAYERS, 3, WIDTH, WIDTH), numpy.float32)
    if not store.exists(path):
        made = numpy.random.default_rng(1).standard_normal(weights.shape, numpy.float32)
        store.write(path, made)
    with store.open(path, buffering=0) as file:
        count = file.readinto(weights)          # from the drive into the array, checked on the way; no copy between
    assert count == weights.nbytes, "a file of another model"
    return weights


if __name__ == "__main__":
    main()
