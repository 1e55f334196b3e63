#!/usr/bin/env python3
"""The operator's walk: three machines (network namespaces with a disk each), clients that work all the while, and what an operator does.

  python3 tests/walk/run.py --stoker target/debug/stoker                   every step, in some ten minutes
  python3 tests/walk/run.py --stoker ... --only 'rolling,full disk'        the first nodes, and these steps
  python3 tests/walk/run.py --stoker ... --next OTHER/stoker               the upgrade is to another build

For each step it prints what clients did, the errors that reached them after the retries that they come with, and their longest pause.
A broken bar (an error; a pause above 5 s where no reason is stated) fails the run. Needs root, `ip`, loop devices and FUSE; boto3
and SeaweedFS are pinned and kept in STOKER_CACHE (~/.cache/stoker-tests).
Exit code: 0 passed, 1 a bar was broken or a step failed, 3 what it needs cannot be had here.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

# The checkout stays as it is.
sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
CLIENTS = HERE.parent / "clients"
sys.path[:0] = [str(HERE), str(CLIENTS)]

import tools  # noqa: E402
from net import Cannot, Net, within  # noqa: E402

NOT_HERE = 3
MACHINES = ("m1", "m2", "m3")
WALK_SECONDS_MAX = 3600


def main():
    args = parse()
    missing = [name for name in ("ip", "nsenter", "mkfs.ext4", "losetup") if not shutil.which(name)]
    missing += [path for path in ("/dev/fuse", "/dev/loop-control") if not os.access(path, os.R_OK | os.W_OK)]
    if os.geteuid() != 0 or missing:
        print(f"walk: cannot run: it needs root{', ' + ', '.join(missing) if missing else ''}", flush=True)
        return NOT_HERE
    started = time.monotonic()
    try:
        programs = {name: str(path) for name, path in tools.install(("boto3", "tools")).items()}
        with Net((*MACHINES, "lake", "client")) as net:
            code = walk(args, net, programs)
    except (Cannot, tools.Missing) as why:
        print(f"walk: cannot run: {why}", flush=True)
        return NOT_HERE
    if code != NOT_HERE:
        print(f"walk: {'FAILED' if code else 'passed'}, {time.monotonic() - started:.0f} s", flush=True)
    return code


def walk(args, net, programs):
    """Everything else happens in the network of the clients."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stoker-walk-", dir=args.dir))
    fields = {
        "stoker": str(args.stoker), "next": str(args.next) if args.next else None, "scratch": str(folder), "tier": "full",
        "programs": programs, "only": [part.strip() for part in args.only.split(",") if part.strip()],
        "net": {"tag": net.tag, "network": net.network, "names": net.names},
    }  # fmt: skip
    environment = {
        **os.environ, "STOKER_TARGET": json.dumps(fields), "PYTHONDONTWRITEBYTECODE": "1", "STOKER_NAME": "cell.test",
        "STOKER_ADDRESSES": " ".join(net.address(name) for name in MACHINES),
        "PYTHONPATH": f"{CLIENTS / 'resolver'}:{HERE}:{CLIENTS}",
    }  # fmt: skip
    command = within(net.space("client"), [f"{programs['boto3']}/python", str(HERE / "walk.py")])
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait(timeout=WALK_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        print(f"walk: FAILED: not done after {WALK_SECONDS_MAX} s", flush=True)
        return 1
    finally:
        end(process)
        if args.keep:
            print(f"walk: kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def end(process):
    """It ends its nodes and mounts when it is asked to."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", required=True, type=pathlib.Path, help="the program under test")
    parser.add_argument("--next", type=pathlib.Path, help="what the upgrade is to; by default a copy of the program")
    parser.add_argument("--only", default="", help="only steps with one of these in their names, comma-separated, after the first nodes")
    parser.add_argument("--dir", default=None, help="where to make the folder of the run")
    parser.add_argument("--keep", action="store_true", help="leave that folder")
    args = parser.parse_args()
    args.stoker = args.stoker.resolve()
    if not args.stoker.is_file():
        parser.error(f"{args.stoker} is not there; `cargo build -p stoker` makes target/debug/stoker")
    return args


if __name__ == "__main__":
    # Whoever ends this early wants its processes, mounts and networks ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
