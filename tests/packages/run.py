#!/usr/bin/env python3
"""The packages on machines that have never seen Rust: a clean Debian root, and the database of an RPM.

  python3 tests/packages/run.py --stoker target/debug/stoker
  python3 tests/packages/run.py --stoker ... --only deb          deb, rpm, image, chart, wheel

deb    installs the package into a debootstrap root, writes a file through a node that runs there as the packaged user, upgrades to
       the next package, removes it and purges it: the data survives all but the purge. The packaged pages and completions are looked at.
rpm    the same files, owners and configuration by `rpm --root`; what Debian's rpm cannot resolve (glibc of another system) is not asked.
image  `deploy/image/build` twice gives the same layers; run as 65532 without capabilities, S3 in and out, and a health check.
chart  helm lint and template of every values file, and the plain manifests, against the schemas of two releases of Kubernetes.
wheel  the Python package built by maturin, installed into a clean environment without Rust and network, used against a node.
Needs root and Debian (debootstrap, dpkg-deb, rpm, buildah, podman) for all but chart and wheel.
Exit code: 0 passed, 1 something failed, 3 nothing of it could be run here.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# The checkout stays as it is.
sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

from steps import NOT_HERE, Failed, Missing, run, say  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", type=pathlib.Path, required=True, help="the program that is packed")
    parser.add_argument("--only", default="deb,rpm,image,chart,wheel")
    parser.add_argument("--dir", help="where the roots are made")
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stoker-packages-", dir=args.dir))
    passed, missing = [], []
    try:
        for name in args.only.split(","):
            step = __import__(f"{name}_step")
            try:
                step.check(args.stoker.resolve(), folder, dist)
            except Missing as why:
                missing.append(name)
                say(f"{name}: skipped: {why}")
                continue
            passed.append(name)
            say(f"{name}: ok")
    except Failed as why:
        say(f"FAILED: {why}")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if passed else NOT_HERE


def dist(program, out, release, only):
    """Packs a program; gives the folder."""
    cargo = os.environ.get("CARGO", "cargo")
    more = ["--release", str(release), "--only", only]
    run([cargo, "xtask", "dist", "--binary", program, "--out", out, *more], cwd=ROOT)
    return out


if __name__ == "__main__":
    sys.exit(main())
