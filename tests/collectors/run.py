#!/usr/bin/env python3
"""A program with the features `otel` and `kafka`: its traces at a receiver of OTLP, its events in Kafka.

  cargo xtask collectors                                                  builds it, and runs this
  python3 tests/collectors/run.py --stoker target/debug/stoker --only kafka    some parts: traces, kafka

traces   a PUT and a GET through S3 are traces with the right parents; so is a drain; no request notices a collector that is not
         there or does not answer
kafka    events reach brokers that were not there, in order, also those from before a kill

Libraries are pinned and kept in STOKER_CACHE (~/.cache/stoker-tests). Exit code: 0 passed, 1 something failed, 3 what it needs
could not be had.
"""

import argparse
import importlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

# The checkout stays as it is.
sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
PARTS = ("traces", "kafka")
NOT_HERE = 3
# Set for the interpreter that has the libraries.
INSIDE = "STOKER_COLLECTORS_INSIDE"


def main():
    args = parse()
    if os.environ.get(INSIDE):
        return run_parts(args)
    sys.path.insert(0, str(HERE.parent / "clients"))
    import tools

    try:
        programs = tools.install(("collectors",), HERE / "requirements")
    except tools.Missing as why:
        print(f"collectors: cannot run: {why}", flush=True)
        return NOT_HERE
    command = [programs["collectors"] / "python", "-B", *sys.argv]
    return subprocess.run(command, env=os.environ | {INSIDE: "1"}, check=False).returncode


def run_parts(args):
    started = time.monotonic()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stoker-collectors-", dir=args.dir))
    failed = []
    for part in args.only:
        begun, place = time.monotonic(), folder / part
        place.mkdir()
        try:
            words = importlib.import_module(part).check(args.stoker, place)
            print(f"collectors: {part}: ok, {words}, {time.monotonic() - begun:.0f} s", flush=True)
        except Exception:
            failed.append(part)
            traceback.print_exc()
            print(f"collectors: {part}: FAILED; logs: {place}", flush=True)
    if not failed and not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    words = f"FAILED: {', '.join(failed)}" if failed else "passed"
    print(f"collectors: {words}, {time.monotonic() - started:.0f} s", flush=True)
    return 1 if failed else 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", required=True, type=lambda text: pathlib.Path(text).resolve(), help="the program under test")
    parser.add_argument("--only", default=PARTS, type=lambda text: text.split(","), help="parts, with commas between them")
    parser.add_argument("--dir", help="where to work instead of the system's folder for temporary files")
    parser.add_argument("--keep", action="store_true", help="leave everything behind for a look")
    args = parser.parse_args()
    unknown = [part for part in args.only if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}")
    return args


if __name__ == "__main__":
    sys.exit(main())
