#!/usr/bin/env python3
"""Bytes that say where they belong: `feed.py write BYTES` to stdout, `feed.py check BYTES` from stdin.

No two blocks are the same, so that one in a wrong place is found; and they cost next to nothing, so that they are not what is measured.
"""

import os
import random
import sys

BLOCK = 4 << 20


def block(number, base):
    """A view of one block: the same random bytes, with its number in every 64 KiB."""
    stamp = number.to_bytes(8, "little")
    for at in range(0, BLOCK, 64 << 10):
        base[at : at + 8] = stamp
    return memoryview(base)


def write(size, out):
    base = bytearray(random.Random(7).randbytes(BLOCK))
    for number in range((size + BLOCK - 1) // BLOCK):
        piece = block(number, base)[: size - number * BLOCK]
        while piece:
            piece = piece[os.write(out, piece) :]


def check(size, source):
    base = bytearray(random.Random(7).randbytes(BLOCK))
    with os.fdopen(source, "rb", buffering=0) as file:
        stream = __import__("io").BufferedReader(file, BLOCK)
        for number in range((size + BLOCK - 1) // BLOCK):
            expected = block(number, base)[: size - number * BLOCK]
            if stream.read(len(expected)) != expected:
                sys.exit(f"wrong or missing bytes in the block at {number * BLOCK}")
        if stream.read(1):
            sys.exit(f"more than {size} bytes")


if __name__ == "__main__":
    {"write": lambda size: write(size, 1), "check": lambda size: check(size, 0)}[sys.argv[1]](int(sys.argv[2]))
