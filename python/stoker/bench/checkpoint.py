"""``python -m stoker.bench checkpoint``: a sharded save by files, by torch's own writer, over S3 and by StokerWriter."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .ground import human, parse_size, say, scratch
from .node import Node
from .report import Bar, Report, Workload

NODE_MEMORY = 2 << 30
VOLUME = "bench"
#: Beside its staging memory a rank holds what its connection shares with the node (64 MiB), and small things.
BESIDE = 96 << 20
STREAM_MAX = 512 << 20
#: Most times as long as one copy of the shard that `snapshot` blocks.
SNAPSHOT_MAX = 1.3
#: Least part of the drive's own bandwidth.
COMMITTED_MIN = 0.85


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=parse_size, default=2 << 30, metavar="SIZE", help="bytes of each rank (default 2GiB)")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="processes that save together (default 2)")
    parser.add_argument("--tensors", type=int, default=32, metavar="N", help="tensors of each rank (default 32)")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes on this machine: with 2 the class is `two`")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="timed saves of each side (default 3)")
    parser.add_argument("--quick", action="store_true", help="an eighth of the bytes, one round")


def run(args: argparse.Namespace) -> Report:
    size, rounds = args.size, args.rounds
    if args.quick:
        size, rounds = max(1 << 20, size // 8), 1
    size = max(size // args.tensors // 4096, 1) * 4096 * args.tensors
    whole = size * args.ranks
    # What was removed is free a little later, so that there is room for some saves beside the one that is written.
    ring = args.ring or 4 * whole + (2 << 30)
    commits = "one" if args.nodes == 1 else "two"
    report = Report("checkpoint")
    names = _sides(size)
    with scratch(args.dir, ring * args.nodes + 3 * whole) as folder:
        try:
            import torch  # noqa: F401
        except ImportError as fault:
            why = f"torch is not installed ({fault})"
            for name in names:
                report.add(Workload(f"{name}_blocked", "s", skipped=why))
            return report
        with Node(folder / "node", ring=ring, memory=NODE_MEMORY, nodes=args.nodes) as node:
            node.volume(VOLUME, commits)
            found = _save(folder, node, {"size": size, "tensors": args.tensors, "rounds": rounds, "sides": names}, args.ranks)
    _tell(report, found, size, whole, commits)
    report.machine |= {"class": commits, "nodes": args.nodes, "ranks": args.ranks, "bytes_per_rank": size}
    report.machine |= {"torch": found["torch"], "nodes_drives": "all on the drive of --dir"}
    return report


def _sides(size: int) -> list[str]:
    parts = [f"snapshot_{percent}" for percent in (50, 25)] if size >= 8 << 20 else []
    return ["memory_copy", "raw_write", "torch_save", "dcp_files", "s3", "stream", "snapshot", *parts]


def _save(folder: Path, node: Node, config: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Runs the ranks. Returns what they found: for each side the rounds of all ranks together."""
    said = node.said
    config |= {"dir": str(node.dir), "volume": VOLUME, "folder": str(folder), "ranks": ranks, "meet": str(folder / "meet")}
    config |= {"s3": said["s3"], "region": said["region"]}
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": said["access_key"], "AWS_SECRET_ACCESS_KEY": said["secret_key"]}
    # So that ranks find the package that this process runs, also from a checkout.
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    processes = []
    try:
        for rank in range(ranks):
            command = [sys.executable, "-m", "stoker.bench.rank", json.dumps({**config, "rank": rank})]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True))
        said_by = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    failed = [rank for rank, process in enumerate(processes) if process.returncode]
    if failed:
        raise ChildProcessError(f"rank {failed[0]} ended with {processes[failed[0]].returncode}")
    return dict(json.loads(said_by[0].splitlines()[-1]))


def _tell(report: Report, found: dict[str, Any], size: int, whole: int, commits: str) -> None:
    judged = commits == "one"
    for name, side in found["sides"].items():
        if side["skipped"]:
            report.add(Workload(f"{name}_blocked", "s", skipped=side["skipped"]))
            say(f"{name}: skipped: {side['skipped']}")
            continue
        if name == "memory_copy":
            report.add(Workload(name, "s", side["blocked"], more={"bytes": size}))
            continue
        if name == "raw_write":
            report.add(Workload("raw_write_time", "s", side["blocked"], more={"bytes": whole}))
            report.add(Workload("raw_write", "mb_s", [whole / one / 1e6 for one in side["blocked"]]))
            continue
        is_ours = name.startswith(("snapshot", "stream"))
        blocked = Workload(f"{name}_blocked", "s", side["blocked"], bars=[Bar("memory_copy"), Bar("raw_write_time")])
        if name == "snapshot":
            blocked.bars = [Bar("memory_copy", "at most", SNAPSHOT_MAX if judged else None), Bar("raw_write_time")]
        if name == "stream":
            means = "bytes / (0.85 x the drive)"
            blocked.bars = [Bar("memory_copy"), Bar("raw_write_time", "at most", 1 / COMMITTED_MIN if judged else None, means)]
        report.add(blocked)
        rates = [whole / one / 1e6 for one in side["committed"]]
        limit = COMMITTED_MIN if is_ours and judged and name in ("snapshot", "stream") else None
        row = report.add(Workload(f"{name}_committed", "mb_s", rates, bars=[Bar("raw_write", limit=limit)]))
        if not judged and is_ours:
            row.more["written_mb_s"] = 2 * row.figure
            row.more["why_no_bar"] = "both copies go to the drive that raw_write has for one"
        report.add(_memory(name, side, size))


def _memory(name: str, side: dict[str, Any], size: int) -> Workload:
    row = Workload(f"{name}_memory", "mib", [side["rss"] / (1 << 20)], more={"pss_mib": side["pss"] / (1 << 20)})
    staging = side.get("staging")
    row.more["staging_bytes"] = staging
    if name == "stream":
        row.bars = [Bar(None, "at most", STREAM_MAX / (1 << 20), human(STREAM_MAX))]
    elif name.startswith("snapshot"):
        # Containers of torch's format lie around the tensors.
        most = (staging or size + (1 << 20)) + BESIDE
        row.bars = [Bar(None, "at most", most / (1 << 20), f"{human(staging or size)} and {human(BESIDE)}")]
    return row
