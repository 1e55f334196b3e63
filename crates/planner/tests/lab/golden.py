#!/usr/bin/env python3
"""The lab's formulas, as its code has them, over the corners of its sliders: what `io.tsv` and `design.tsv` are made of.

  python3 crates/planner/tests/lab/golden.py        writes both beside this file

Every value is written so that it is read back as the same double. The lab's second cell uses `math` without naming it among its
arguments; it is taken as meant.
"""

import itertools
import math
import pathlib

HERE = pathlib.Path(__file__).resolve().parent


def analyzer(ctx, workers, batch, pattern, osts):
    lustre_ost_bw, ib_bw, gpus, sample_mb, compute_ms = 28.0, 25.0, 128, 4.0, 50.0
    if ctx == "nvme":
        base, network = 28.0, 1.0
    else:
        base = osts * lustre_ost_bw
        network = min(1.0, (ib_bw * 16) / base)
    pattern_factor = {"sequential": 0.85, "random": 0.07, "prefetch": 0.78}[pattern]
    if workers == 1:
        worker_factor = 0.25
    elif workers <= 4:
        worker_factor = 0.25 + (workers - 1) * 0.20
    elif workers <= 8:
        worker_factor = 0.85 + (workers - 4) * 0.03
    else:
        worker_factor = min(0.97 + (workers - 8) * 0.002, 1.0)
    overlap = {"sequential": 2.0, "random": 0.5, "prefetch": 4.0}[pattern]
    depth = max(1, int(workers * overlap))
    effective = base * pattern_factor * worker_factor * network
    per_gpu = effective / gpus
    batch_gb = (batch * sample_mb) / 1024.0
    t_io = (batch_gb / per_gpu) * 1000.0 if per_gpu > 0 else 9999.0
    if pattern == "prefetch":
        wait = max(0.0, t_io - compute_ms * min(depth, 4))
    else:
        wait = max(0.0, t_io - compute_ms)
    total = compute_ms + wait
    util = min((compute_ms / total) * 100.0, 100.0) if total > 0 else 0.0
    label = "Healthy" if util >= 80 else "Degraded" if util >= 50 else "Starved"
    used = (effective / (base + 0.001)) * 100.0
    return [base, network, pattern_factor, worker_factor, float(depth), effective, per_gpu, batch_gb, t_io, wait, total, util, used, label]


def designer(ctx, gpus, workers, dataset, mds):
    opens, pressure = {"shards": (0.2, 0.02), "individual": (50.0, 1.0), "object_store": (50.0, 0.0)}[dataset]
    total_workers = gpus * workers
    ops = total_workers * opens * 3.0 * pressure
    capacity = mds * 50_000
    saturated = (dataset != "object_store") and (ops > capacity)
    util = min((ops / capacity) * 100.0, 200.0) if capacity > 0 else 0.0
    demand = gpus * 0.08
    supply = 28.0 if ctx == "nvme" else 48 * 28.0
    headroom = ((supply - demand) / supply) * 100.0
    needed = max(1, int(math.ceil(ops / 50_000))) if dataset != "object_store" else 1
    if dataset == "object_store":
        words = "Object store — no MDS. Scales to any GPU count."
    elif saturated:
        words = f"Add {needed - mds} more MDS nodes or migrate to object store."
    elif util > 60:
        words = "MDS approaching capacity. Switch to sequential shards or pre-provision additional MDS."
    else:
        words = "Architecture is sound at current scale. Monitor MDS utilization as GPU count grows."
    return [float(total_workers), ops, float(capacity), util, saturated, demand, supply, headroom, demand > supply, float(needed), words]


def write(name, model, *choices):
    with open(HERE / name, "w") as file:
        for given in itertools.product(*choices):
            found = [one if isinstance(one, str) else repr(one) for one in model(*given)]
            print("\t".join([str(one) for one in given] + found), file=file)


CONTEXTS = ["nvme", "distributed_fs"]
write("io.tsv", analyzer, CONTEXTS, [1, 2, 4, 5, 8, 9, 16], [32, 64, 512], ["sequential", "random", "prefetch"], [4, 24, 48])
write("design.tsv", designer, CONTEXTS, [128, 512, 4096], [1, 4, 8, 16], ["shards", "individual", "object_store"], [1, 4, 8])
