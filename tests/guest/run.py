#!/usr/bin/env python3
"""The NFS client of a Linux kernel, in an emulated guest, against a real node.

  python3 tests/guest/run.py --stoker target/debug/stoker                   some minutes
  python3 tests/guest/run.py --stoker ... --steps 100000 --seeds 3          longer with fsx

The guest needs no rights and no network: QEMU emulates it, and it reaches this machine's loopback and nothing else.
Needs qemu-system-x86_64, busybox (static), and a Debian kernel, which `apt-get download` gets into STOKER_CACHE
(~/.cache/stoker-tests). As root on Debian what is missing is installed, unless --no-install is given.
Exit code: 0 passed, 1 something failed, 3 the guest cannot be had here.
"""

import argparse
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

# The checkout stays as it is.
sys.dont_write_bytecode = True

import image
import programs
from rig import Rig

HERE = pathlib.Path(__file__).resolve().parent
NEEDS = ("qemu-system-x86_64", "busybox", "fsx")


def main():
    args = parse()
    if not args.no_install:
        programs.install(NEEDS)
    missing = [need for need in NEEDS[:2] if not programs.find(need)]
    if missing:
        print(f"guest: cannot run: this machine has no {', '.join(missing)}", flush=True)
        return 3
    started = time.monotonic()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stoker-guest-", dir=args.dir))
    try:
        with Rig(args.stoker, folder, "4GiB", is_mounted=False) as rig:
            variables = {"PORT": rig.nfs_port, "NAMES": args.names, "STEPS": args.steps, "SEEDS": args.seeds}
            variables |= {"FILES": args.files, "KILLS": args.kills, "MORE": f",{args.options}" if args.options else ""}
            kernel = image.build(folder / "initrd", HERE / "init", variables)
            problem = follow(rig, kernel, folder, args.minutes)
    except image.Missing as missing:
        print(f"guest: cannot run: {missing}", flush=True)
        return 3
    finally:
        if args.keep:
            print(f"guest: kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"guest: {'FAILED: ' + problem if problem else 'passed'}, {time.monotonic() - started:.0f} s", flush=True)
    return 1 if problem else 0


def follow(rig, kernel, folder, minutes):
    """Boots the guest and does what it asks for; what went wrong, or none."""
    command = [programs.find("qemu-system-x86_64"), "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024"]
    command += ["-nodefaults", "-no-reboot", "-display", "none", "-kernel", str(kernel), "-initrd", str(folder / "initrd")]
    command += ["-append", "console=ttyS0 panic=-1 quiet", "-serial", f"file:{folder / 'console'}", "-serial", "stdio"]
    command += ["-netdev", "user,id=net,ipv6=off", "-device", "virtio-net-pci,netdev=net,romfile="]
    guest = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    watch = threading.Timer(minutes * 60, guest.kill)
    watch.start()
    words, ended = [], None
    try:
        for line in guest.stdout:
            line = line.rstrip()
            words = [*words[-40:], line]
            what, _, rest = line.partition(" ")
            if what == "@kill":
                rig.kill_node()
            elif what == "@sum":
                problem = compared(rig, rest.split()[0])
                if problem:
                    return problem
            elif what == "@end":
                ended = rest
            elif what.startswith("@"):
                print(f"guest: {what[1:]} {rest}", flush=True)
    finally:
        watch.cancel()
        guest.kill()
        guest.wait()
    if rig.node.poll() is not None:
        return f"the node ended with {rig.node.returncode}:\n{rig.last_words('node.log')}"
    if ended != "0":
        console = (folder / "console").read_text(errors="replace").splitlines()[-20:]
        return "\n".join(["the guest ended early; it said:", *words, "its console:", *console])
    return None


def compared(rig, expected):
    """A copy that the guest made is the same through the mount of this machine, where that can be had."""
    try:
        rig.mount()
    except AssertionError as error:
        print(f"guest: skipped: its files through a mount here: {error}", flush=True)
        return None
    script = "cd copy1 && find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum"
    found = rig.sh(script).split()[0]
    print("guest: passed the same bytes through FUSE", flush=True)
    return None if found == expected else f"the mount of this machine shows other bytes: {found}, not {expected}"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", required=True, type=pathlib.Path, help="the program under test")
    parser.add_argument("--names", type=int, default=2_000, help="names in one directory")
    parser.add_argument("--steps", type=int, default=20_000, help="operations of fsx")
    parser.add_argument("--seeds", type=int, default=2, help="times that fsx is run")
    parser.add_argument("--files", type=int, default=300, help="files that are copied while the node is killed")
    parser.add_argument("--kills", type=int, default=3, help="how often it is killed")
    parser.add_argument("--options", default="", help="more options of the mount in the guest: wsize=4096,sync")
    parser.add_argument("--minutes", type=int, default=60, help="how long the guest may take")
    parser.add_argument("--no-install", action="store_true", help="use what is here")
    parser.add_argument("--dir", default=None, help="where to make the folder of the run")
    parser.add_argument("--keep", action="store_true", help="leave that folder")
    args = parser.parse_args()
    args.stoker = args.stoker.resolve()
    if not args.stoker.is_file():
        parser.error(f"{args.stoker} is not there; `cargo build -p stoker` makes target/debug/stoker")
    return args


if __name__ == "__main__":
    # Whoever ends this early wants its processes and mounts ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
