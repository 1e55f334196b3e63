#!/usr/bin/env python3
"""Real applications on a mounted volume of a real node, and by NFS.

  python3 tests/apps/run.py --stoker target/debug/stoker                   what every check runs, in less than a minute
  python3 tests/apps/run.py --stoker ... --tier full                       in realistic sizes; gets programs that are missing
  python3 tests/apps/run.py --stoker ... --tier long                       longer
  python3 tests/apps/run.py --stoker ... --only fsx,nfs --seed 7           some of them

What needs a program that is not here is skipped, in words. `full` and `long` install Debian packages if they are root and compile
fsx into STOKER_CACHE (~/.cache/stoker-tests), unless --no-install is given.
Exit code: 0 passed, 1 something failed, 3 nothing could be run here.
"""

import argparse
import dataclasses
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
import traceback

# The checkout stays as it is.
sys.dont_write_bytecode = True

import blocks
import databases
import doors
import probes
import programs
import trees
from rig import Rig

TIERS = ("quick", "full", "long")


@dataclasses.dataclass
class Application:
    name: str
    run: object
    needs: tuple = ()
    # The first tier that runs it.
    tier: str = "quick"


APPLICATIONS = [
    # crates/stoker/tests/mount.rs has a small one in every gate.
    Application("git", trees.git, ("git",), "full"),
    Application("sqlite", databases.sqlite, ("sqlite3",)),
    Application("tar", trees.tar, ("tar", "diff")),
    Application("rsync", trees.rsync, ("rsync", "diff")),
    Application("cargo", trees.cargo, ("cargo",)),
    Application("fio", blocks.fio, ("fio",)),
    Application("fsx", blocks.fsx, ("fsx",)),
    Application("nfs", doors.nfs),
    Application("crowd", blocks.crowd),
    Application("posix", probes.posix, (), "full"),
    Application("lmdb", databases.lmdb, ("python-modules",), "full"),
    Application("duckdb", databases.duckdb, ("python-modules",), "full"),
    Application("postgresql", databases.postgresql, databases.NEEDS, "full"),
    Application("node-killed", trees.node_killed, ("diff",), "full"),
    Application("mount-killed", blocks.mount_killed, (), "full"),
]


@dataclasses.dataclass
class Run:
    tier: str
    seed: int

    def number(self, quick, full, long):
        return {"quick": quick, "full": full, "long": long}[self.tier]


def main():
    args = parse()
    chosen = args.only.split(",") if args.only else None
    reached = TIERS[: TIERS.index(args.tier) + 1]
    wanted = [one for one in APPLICATIONS if (one.name in chosen if chosen else one.tier in reached)]
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        print(f"apps: cannot run: /dev/fuse cannot be used here: {error}", flush=True)
        return 3
    if not programs.find("bash"):
        print("apps: cannot run: this machine has no bash", flush=True)
        return 3
    if args.tier != "quick" and not args.no_install:
        programs.install({need for one in wanted for need in one.needs})
    started, failed, skipped = time.monotonic(), [], []
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stoker-apps-", dir=args.dir))
    try:
        with Rig(args.stoker, folder, {"quick": "3GiB"}.get(args.tier, "8GiB")) as rig:
            for one in wanted:
                missing = [need for need in one.needs if not programs.find(need)]
                if missing:
                    print(f"apps: {one.name}: skipped: this machine has no {', '.join(missing)}", flush=True)
                    skipped.append(one.name)
                elif not passes(one, rig, Run(args.tier, args.seed)):
                    failed.append(one.name)
                    break
    finally:
        if args.keep:
            print(f"apps: kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    words = f"FAILED: {', '.join(failed)}" if failed else "passed"
    words += f", skipped: {', '.join(skipped)}" if skipped else ""
    print(f"apps: {words}, {time.monotonic() - started:.0f} s", flush=True)
    return 1 if failed else 0


def passes(application, rig, run):
    """Runs one of them; true if it worked and left node and mount alive."""
    started = time.monotonic()
    try:
        told = application.run(rig, run)
        problem = rig.problem()
        if not problem:
            trees.cleared(rig)
    except Exception as error:
        told, problem = "", f"{error}" if isinstance(error, AssertionError) else traceback.format_exc()
        problem += f"\nnode: {rig.last_words('node.log', 5)}\nmount: {rig.last_words('mount.log', 5)}"
    took = f"{time.monotonic() - started:.0f} s"
    print(f"apps: {application.name}: {'FAILED, ' + took + ': ' + problem if problem else told + ', ' + took}", flush=True)
    return not problem


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", required=True, type=pathlib.Path, help="the program under test")
    parser.add_argument("--tier", choices=TIERS, default="quick")
    parser.add_argument("--only", default="", help="only these, comma-separated, whatever their tier")
    parser.add_argument("--seed", type=int, default=1, help="the first seed of what is random")
    parser.add_argument("--no-install", action="store_true", help="use what is here")
    parser.add_argument("--dir", default=None, help="where to make the folder of the run")
    parser.add_argument("--keep", action="store_true", help="leave that folder")
    args = parser.parse_args()
    args.stoker = args.stoker.resolve()
    if not args.stoker.is_file():
        parser.error(f"{args.stoker} is not there; `cargo build -p stoker` makes target/debug/stoker")
    unknown = set(filter(None, args.only.split(","))) - {one.name for one in APPLICATIONS}
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(one.name for one in APPLICATIONS)}")
    return args


if __name__ == "__main__":
    # Whoever ends this early wants its processes and mounts ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
