"""Names of numbers: what nodes tell, what alerts and dashboard ask for, and what docs/metrics.md says."""

import json
import re
import socket
import struct
import subprocess

import tools

DOCS = tools.ROOT / "docs" / "metrics.md"
DASHBOARD = tools.ROOT / "deploy" / "grafana" / "stoker.json"
ASKING = (tools.ROOT / "deploy" / "prometheus" / "alerts.yml", DASHBOARD)
# Behind this line of the page are names that only some machines have; tests of the program itself know them.
HARDWARE = "<!-- hardware -->"
DCGM = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1"} 41\nDCGM_FI_DEV_GPU_UTIL{gpu="0"} 97\n'


def check(stoker, folder):
    told, pages = set(), 0
    with tools.Cluster(stoker, folder) as cluster:
        told |= work(stoker, folder, cluster.nodes)
        for node in cluster.nodes:
            # A mark behind which everything was counted: a node tells of its peers once it has met them.
            names = tools.until(lambda: whole(node), "a node tells of its peers and of a file in the lake")
            told |= names
            pages += 1
    with tools.Page(DCGM) as page:
        told |= alone(stoker, folder, page.url)
        pages += 1
    text = DOCS.read_text()
    always, _, sometimes = text.partition(HARDWARE)
    assert sometimes, f"{DOCS} has no line {HARDWARE}"
    known = documented(text)
    complain("told by a node and not in docs/metrics.md", told - known)
    complain("in docs/metrics.md and told by no node", documented(always) - told)
    for path in ASKING:
        asked = asked_for(path)
        complain(f"asked for by {path.name} and not in docs/metrics.md", asked - known)
        complain(f"asked for by {path.name} and told by no node", asked - told - documented(sometimes))
    return f"{pages} pages, {len(told)} names"


def complain(what, names):
    assert not names, f"{what}: {', '.join(sorted(names))}"


def documented(text):
    return set(re.findall(r"`((?:stoker|process)_[a-z0-9_]+)`", text))


def asked_for(path):
    """Names in expressions, as families: a histogram by its own name."""
    text = path.read_text()
    if path.suffix == ".json":
        expressions = "\n".join(target["expr"] for panel in panels(json.loads(text)) for target in panel.get("targets", []))
    else:
        expressions = text
    names = set(re.findall(r"\b(?:stoker|process)_[a-z0-9_]+\b", expressions))
    return {re.sub(r"_bucket$", "", name) for name in names}


def panels(dashboard):
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def families(node):
    """The names on a page, which Prometheus' own judge has nothing against."""
    url = node["admin"]
    page = tools.metrics(node)
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr.strip(), f"{url}: {done.stdout}{done.stderr}"
    assert re.search(r"^stoker_metrics_left_out 0$", page, re.M), "numbers were left out"
    lines = len(page.splitlines())
    assert lines < 5000, f"{url}: {lines} lines"
    return set(re.findall(r"^# TYPE (\S+)", page, re.M))


def whole(node):
    names = families(node)
    return names if {"stoker_peer_call_seconds", "stoker_rail_rtt_seconds", "stoker_source_reads_total"} <= names else None


def work(stoker, folder, nodes):
    """Something of everything that is counted: writes, drains, reads here and from other nodes, requests by S3. What nodes told
    right behind their reads: times of sources fade within seconds."""
    told = set()
    file = folder / "file"
    # Long enough for many reads from each source.
    file.write_bytes(bytes(range(256)) * (32 << 12))
    for node in nodes:
        target = f"data/{node['name']}"
        tools.checked([stoker, "put", "--dir", node["dir"], file, target])
        tools.checked([stoker, "drain", "--dir", node["dir"], "data", "--wait"])
    for node in nodes:
        for other in nodes:
            tools.checked([stoker, "get", "--dir", node["dir"], f"data/{other['name']}", folder / "back"])
        told |= families(node)
        with socket.create_connection(node["s3"].removeprefix("http://").split(":")) as client:
            client.sendall(b"GET /data/nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            while client.recv(4096):
                pass
    return told


def alone(stoker, folder, exporter):
    """A node by its configuration, with everything that has to be configured."""
    dir, drive = folder / "alone", folder / "drive"
    drive.mkdir()
    nfs = tools.free_port()
    config = folder / "alone.toml"
    config.write_text(
        f"""[node]
dir = "{dir}"
memory = "1GiB"
[[drive]]
path = "{drive}"
size = "2GiB"
dwpd = 1
endurance_tb = 3500
[s3]
listen = ["127.0.0.1:0"]
[nfs]
listen = ["127.0.0.1:{nfs}"]
[admin]
listen = "127.0.0.1:0"
[telemetry]
exporters = ["{exporter}"]
[events]
webhooks = ["http://127.0.0.1:{tools.free_port()}/nobody"]
"""
    )
    with tools.Program([stoker, "serve", "--config", config, "--json"], folder / "alone.log") as node:
        ready = json.loads(node.line())
        call_nfs(nfs)
        return tools.until(lambda: page_of_all(ready), "facts of the exporter")


def page_of_all(node):
    names = families(node)
    return names if "stoker_gpu_temperature_celsius" in names else None


def call_nfs(port):
    """The procedure that does nothing, of NFSv3."""
    call = struct.pack(">IIIIIIIIII", 7, 0, 2, 100003, 3, 0, 0, 0, 0, 0)
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(struct.pack(">I", 0x80000000 | len(call)) + call)
        assert client.recv(4096), "the NFS door says nothing"
