#!/usr/bin/env python3
"""Real S3 clients against a real node: awscli, boto3 with and without awscrt, rclone, s5cmd; and against a cell whose nodes die.

  python3 tests/clients/run.py --stoker target/debug/stoker            what every check runs, in about a minute
  python3 tests/clients/run.py --stoker ... --tier full                more of everything, SeaweedFS as a lake too
  python3 tests/clients/run.py --stoker ... --tier long                Garage as a lake too
  python3 tests/clients/run.py --stoker ... --transfer 4GiB            `aws s3 cp` and `s5cmd cp`, timed
  python3 tests/clients/run.py --stoker ... --listing 100000           pages of a bucket with that many keys, timed

Needs Python 3.10 with venv, and pip the first time: programs are pinned and kept in STOKER_CACHE (~/.cache/stoker-tests).
Exit code: 0 passed, 1 something failed, 3 the programs could not be had.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

# The checkout stays as it is.
sys.dont_write_bytecode = True

import listing
import nodes
import tools
import transfer
from lakes import Garage, SeaweedFs
from node import Node

HERE = pathlib.Path(__file__).resolve().parent
# Suites: name, file, environment whose Python runs it (none for programs that are called).
SUITES = [
    ("boto3", "boto3_large.py", "boto3"),
    ("boto3-crt", "boto3_large.py", "crt"),
    ("boto3", "boto3_basic.py", "boto3"),
    ("boto3-crt", "boto3_basic.py", "crt"),
    ("versions", "versions.py", "boto3"),
    ("awscli", "awscli.py", None),
    ("rclone", "rclone.py", None),
    ("s5cmd", "s5cmd.py", None),
    ("retried", "retried.py", "boto3"),
]
# Those that need more programs, and more time.
FULL_SUITES = [("differential", "differential.py", "boto3")]
SUITE_SECONDS_MAX = 3600


def main():
    args = parse()
    started = time.monotonic()
    try:
        names = tools.ENVIRONMENTS if args.tier == "quick" else (*tools.ENVIRONMENTS, "moto", "matrix")
        programs = {name: str(path) for name, path in tools.install(names).items()}
    except tools.Missing as missing:
        print(f"clients: cannot run: {missing}", flush=True)
        return 3
    print(f"clients: programs ready after {time.monotonic() - started:.0f} s", flush=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stoker-clients-", dir=args.dir))
    try:
        if args.transfer:
            return transfer.measure(args.stoker, folder, programs, args.transfer)
        if args.listing:
            return listing.measure(args.stoker, folder, programs, args.listing)
        failed = run_suites(args, folder, programs) + run_matrix(args, folder, programs) + run_lakes(args, folder, programs)
        failed += run_cell(args, folder, programs)
    finally:
        if args.keep:
            print(f"clients: kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    took = time.monotonic() - started
    print(f"clients: {'FAILED: ' + ', '.join(failed) if failed else 'passed'}, {took:.0f} s", flush=True)
    return 1 if failed else 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", required=True, type=pathlib.Path, help="the program under test")
    parser.add_argument("--tier", choices=["quick", "full", "long"], default="quick")
    parser.add_argument("--suites", default="", help="only these, comma-separated")
    parser.add_argument("--only", default="", help="only scenarios with this in `suite: name`")
    parser.add_argument("--dir", default=None, help="where to make the folder of the run")
    parser.add_argument("--keep", action="store_true", help="leave that folder")
    parser.add_argument("--transfer", type=transfer.size, metavar="SIZE", help="measure copies of a file of this size")
    parser.add_argument("--listing", type=int, metavar="COUNT", help="measure listings of a bucket with this many keys")
    args = parser.parse_args()
    args.stoker = args.stoker.resolve()
    if not args.stoker.is_file():
        parser.error(f"{args.stoker} is not there; `cargo build -p stoker` makes target/debug/stoker")
    return args


def wanted(args, name):
    return not args.suites or name in args.suites.split(",")


def run_suites(args, folder, programs):
    """All clients against one node with a folder as its lake; returns the names of suites that failed."""
    known = SUITES if args.tier == "quick" else SUITES + FULL_SUITES
    suites = [suite for suite in known if wanted(args, suite[0])]
    if not suites:
        return []
    with Node(args.stoker, folder) as node:
        target = describe(node, folder, programs, args)
        # Two at a time: they disturb each other as clients do.
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            failed = [name for name in pool.map(lambda suite: run_suite(suite, target, programs, args), suites) if name]
        return failed + stopped_badly(node)


def run_matrix(args, folder, programs):
    """The clients that people bring, against `up`, against `up --tls`, whose authority they are told to trust, and against a cell; a few of the others in TLS, too."""
    failed = []
    if args.tier == "quick":
        return failed
    for name, more in [("matrix", []), ("matrix-https", ["--tls"])]:
        if not wanted(args, name):
            continue
        place = folder / name
        place.mkdir()
        with Node(args.stoker, place, args=more) as node:
            target = describe(node, place, programs, args)
            trust = {"AWS_CA_BUNDLE": node.ready["ca"]} if more else {}
            suites = [(name, "matrix.py", "matrix")] + ([("boto3-https", "boto3_basic.py", "boto3")] if more else [])
            names = [run_suite(suite, target, programs, args, trust) for suite in suites]
            failed += [name for name in names if name] + stopped_badly(node)
    return failed + run_matrix_cell(args, folder, programs)


def run_matrix_cell(args, folder, programs):
    """The same against three nodes behind one name, which has their addresses in a file of names that nobody else sees."""
    if not wanted(args, "matrix-cell"):
        return []
    enter = [shutil.which("unshare") or "unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*enter, "true"], capture_output=True).returncode:
        print("matrix-cell: skipped: this machine gives nobody a name space of mounts", flush=True)
        return []
    place = folder / "matrix-cell"
    place.mkdir()
    hosts = place / "hosts"
    hosts.write_text("".join(f"{address} {nodes.NAME}\n" for address in nodes.ADDRESSES) + "127.0.0.1 localhost\n")
    # The mount goes with the programs.
    enter += ["sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
    with nodes.Cell(args.stoker, place / "nodes") as cell:
        target = {**cell.ready, **about(place, programs, args)}
        name = run_suite(("matrix-cell", "matrix.py", "matrix"), target, programs, args, enter=enter)
        bad = cell.stop()
        if bad:
            print(f"matrix-cell: FAILED: did not stop as asked: {', '.join(bad)}\n{cell.last_words()}")
    return [one for one in (name, *bad) if one]


def run_lakes(args, folder, programs):
    """What reaches the lake, with a folder and with real servers as lakes. Each on a node of its own: they wait until
    everything is drained, which on a node with other clients may never be."""
    failed = []
    if wanted(args, "drained"):
        place = folder / "drained"
        place.mkdir()
        with Node(args.stoker, place) as node:
            name = run_suite(("drained", "drained.py", "boto3"), describe(node, place, programs, args), programs, args)
            failed += ([name] if name else []) + stopped_badly(node)
    if args.tier != "quick" and wanted(args, "seaweedfs"):
        failed += run_lake(SeaweedFs(f"{programs['tools']}/weed", folder / "seaweedfs"), args, folder, programs)
    if args.tier == "long" and wanted(args, "garage"):
        failed += run_lake(Garage(tools.garage(is_made_here=True), folder / "garage"), args, folder, programs)
    return failed


def run_lake(server, args, folder, programs):
    place = folder / f"{server.name}-node"
    place.mkdir()
    with server:
        make_bucket(server, programs)
        environment = {**os.environ, **server.environment()}
        with Node(args.stoker, place, args=["--lake", server.url()], environment=environment) as node:
            target = describe(node, place, programs, args)
            suite = (f"drained-{server.name}", "drained.py", "boto3")
            failed = run_suite(suite, target, programs, args, {"STOKER_LAKE": json.dumps(server.fields())})
            return ([failed] if failed else []) + stopped_badly(node)


def make_bucket(server, programs):
    """With a client that is not ours; Garage has made it already."""
    command = [f"{programs['awscli']}/aws", "--endpoint-url", server.endpoint, "s3", "mb", server.url().rsplit("/", 1)[0]]
    subprocess.run(command, env={**os.environ, **server.environment()}, capture_output=True)


def run_cell(args, folder, programs):
    """A cell whose nodes are stopped and killed, which the suite does itself."""
    if not wanted(args, "cell"):
        return []
    place = folder / "cell"
    place.mkdir()
    resolver = {
        "PYTHONPATH": str(HERE / "resolver"), "STOKER_NAME": nodes.NAME, "STOKER_ADDRESSES": " ".join(nodes.ADDRESSES)
    }  # fmt: skip
    name = run_suite(("cell", "cell.py", "boto3"), about(place, programs, args), programs, args, resolver)
    return [name] if name else []


def describe(node, folder, programs, args):
    return {**node.ready, **about(folder, programs, args)}


def about(folder, programs, args):
    """What a suite has to know besides its server."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    return {"stoker": str(args.stoker), "programs": programs, "scratch": str(scratch), "tier": args.tier}


def run_suite(suite, target, programs, args, environment=None, enter=()):
    """Runs one file, behind the command that it is to be entered by; returns its name if it failed."""
    name, file, python = suite
    interpreter = f"{programs[python]}/python" if python else sys.executable
    variables = {"STOKER_TARGET": json.dumps(target), "STOKER_ONLY": args.only, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*enter, interpreter, str(HERE / file), name], env={**os.environ, **variables, **(environment or {})},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SUITE_SECONDS_MAX,
        )  # fmt: skip
        words, failed = done.stdout, done.returncode != 0
    except subprocess.TimeoutExpired as late:
        words, failed = f"{(late.stdout or b'').decode()}{name}: FAILED: not done after {late.timeout} s\n", True
    print(words, end="", flush=True)
    return f"{name} ({file})" if failed else None


def stopped_badly(node):
    """A node that died, or does not stop when asked, fails the run too."""
    if not node.is_running():
        print(f"node: FAILED: it ended by itself:\n{node.last_words()}")
        return ["node"]
    if not node.stop():
        print(f"node: FAILED: it did not stop as asked:\n{node.last_words()}")
        return ["node"]
    return []


if __name__ == "__main__":
    sys.exit(main())
