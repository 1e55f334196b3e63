#!/usr/bin/env python3
"""Turns the golden files of stoker-format into the first inputs of the fuzz targets."""

import pathlib

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "crates" / "format" / "tests" / "golden"
BLOCK = 4096


def parse(text):
    out = bytearray()
    for line in text.splitlines():
        if line == "*":
            continue
        offset = int(line[:8], 16)
        while len(out) < offset:
            out.append(out[-16])
        out += bytes.fromhex(line[8:].split("|")[0])
    return bytes(out)


for path in sorted(GOLDEN.glob("*.hex")):
    target = path.stem.removesuffix("_with_aux")
    seed = parse(path.read_text())
    if target == "footer":
        # The target wants the trailer first, so that it stays in place when the fuzzer adds entries.
        seed = seed[-BLOCK:] + seed[:-BLOCK]
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"golden-{path.stem}").write_bytes(seed)
