"""Traces at a receiver of OTLP over HTTP, which reads them by the classes that OpenTelemetry generates from its protocol."""

import http.server
import json
import os
import threading

import boto3
import botocore.config
import telemetry as tools
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

TRACE_PUT, TRACE_GET = "0af7651916cd43dd8448eb211c80319c", "1bf7651916cd43dd8448eb211c80319d"
CALLER = "b7ad6b7169203331"


class Span:
    def __init__(self, resource, span):
        self.resource = resource
        self.name, self.kind = span.name, span.kind
        self.trace, self.id, self.parent = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.fields = {pair.key: value_of(pair.value) for pair in span.attributes}
        assert span.end_time_unix_nano >= span.start_time_unix_nano > 0, span


def value_of(value):
    return getattr(value, value.WhichOneof("value"))


class Collector:
    """Takes spans. While `holds`, it answers nobody."""

    def __init__(self, holds=False):
        self.spans, self.lock = [], threading.Lock()
        self.asked, self.free = threading.Event(), threading.Event()
        if not holds:
            self.free.set()
        own = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                own.asked.set()
                if not own.free.is_set():
                    # Whoever asked has given up by the time that it could be answered.
                    own.free.wait()
                    self.close_connection = True
                    return
                fine = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
                if fine:
                    own.take(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
                answer = trace_service_pb2.ExportTraceServiceResponse().SerializeToString()
                self.send_response(200 if fine else 400)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, request):
        with self.lock:
            for group in request.resource_spans:
                resource = {pair.key: value_of(pair.value) for pair in group.resource.attributes}
                self.spans += [Span(resource, span) for scope in group.scope_spans for span in scope.spans]

    def seen(self, trace=None):
        with self.lock:
            return [span for span in self.spans if trace in (None, span.trace)]

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.free.set()
        self.server.shutdown()
        self.server.server_close()


class Up(tools.Program):
    """Nodes of `stoker up` whose environment names a collector."""

    def __init__(self, stoker, folder, url, *args):
        self.folder, self.url = folder, url
        command = [stoker, "up", "--json", "--dir", folder / "up", "--size", "1GiB", "--memory", "1GiB", *args]
        super().__init__(command, folder / "up.log")

    def __enter__(self):
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = self.url
        try:
            return super().__enter__()
        finally:
            del os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]


def client(node):
    """A client whose requests belong to the trace that `client.trace` names."""
    made = boto3.client(
        "s3",
        endpoint_url=node["s3"],
        aws_access_key_id=node["access_key"],
        aws_secret_access_key=node["secret_key"],
        region_name=node["region"],
        config=botocore.config.Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )
    made.trace = TRACE_PUT

    def add(request, **_):
        request.headers["traceparent"] = f"00-{made.trace}-{CALLER}-01"

    made.meta.events.register("before-send.s3", add)
    return made


def check(stoker, folder):
    cluster = check_cluster(stoker, folder / "cluster")
    drained = check_drain(stoker, folder / "drain")
    answered = check_silent(stoker, folder / "silent")
    return f"{cluster} spans of a PUT and a GET, {drained} of a drain; {answered} requests with no collector and with a silent one"


def check_cluster(stoker, folder):
    """A PUT and a GET through S3, in three nodes: their spans, and who their parents are."""
    folder.mkdir()
    # Longer than one chunk, so that some of it goes to the drives before the end is there.
    body = bytes(range(256)) * (48 << 12)
    with Collector() as collector, Up(stoker, folder, collector.url, "--nodes", "3") as up:
        nodes = json.loads(up.line())
        s3 = client(nodes[0])
        s3.put_object(Bucket="data", Key="folder/file", Body=body)
        s3.trace = TRACE_GET
        assert s3.get_object(Bucket="data", Key="folder/file")["Body"].read() == body
        tools.until(lambda: named(collector.seen(TRACE_PUT), "PutObject"), "the span of the PUT")
        tools.until(lambda: named(collector.seen(TRACE_GET), "GetObject"), "the span of the GET")
        put, get = collector.seen(TRACE_PUT), collector.seen(TRACE_GET)
        for spans, name in ((put, "PutObject"), (get, "GetObject")):
            (request,) = named(spans, name)
            assert (request.parent, request.kind) == (CALLER, 2), (request.parent, request.kind)
            assert request.fields["url.path"] == "/data/folder/file", request.fields
            assert request.fields["http.response.status_code"] == 200, request.fields
            assert request.resource["service.name"] == "stoker", request.resource
            assert request.resource["stoker.node"] == nodes[0]["name"], request.resource
            assert request.resource["stoker.cluster"] and request.resource["service.instance.id"], request.resource
            # Nothing hangs in the air.
            ids = {span.id for span in spans} | {CALLER}
            assert not [span.name for span in spans if span.parent not in ids]
        (commit,) = named(put, "commit")
        assert path(put, commit) == ["PutObject", "commit"], path(put, commit)
        assert path(put, named(put, "chunk")[0]) == ["PutObject", "chunk"]
        for name in ("local append", "peer copies"):
            ways = [path(put, span) for span in named(put, name)]
            assert ["PutObject", "commit", name] in ways and ["PutObject", "chunk", name] in ways, ways
        ways = [path(put, span) for span in named(put, "catalog commit")]
        assert ["PutObject", "commit", "publish", "catalog commit"] in ways, ways
        reads = named(get, "read")
        assert sum(span.fields["bytes"] for span in reads) >= len(body), [span.fields for span in reads]
        for read in reads:
            assert path(get, read) == ["GetObject", "read"], path(get, read)
            asked = [span for span in get if span.parent == read.id]
            assert {span.name for span in asked} == {"ask"}, asked
            assert read.fields["source"] in {span.fields["source"] for span in asked}, read.fields
            assert len(asked) >= 1 + read.fields["hedges"], read.fields
        return len(put) + len(get)


def check_drain(stoker, folder):
    """A node by its configuration, which traces everything: a drain is a trace of its own."""
    folder.mkdir()
    with Collector() as collector:
        config = folder / "node.toml"
        config.write_text(
            f"""[node]
dir = "{folder / 'node'}"
memory = "1GiB"
[s3]
listen = ["127.0.0.1:0"]
[admin]
listen = "127.0.0.1:0"
metrics_open = true
[telemetry.traces]
endpoint = "{collector.url}"
sample = 1.0
"""
        )
        with tools.Program([stoker, "serve", "--config", config, "--json"], folder / "node.log") as node:
            ready = json.loads(node.line())
            (folder / "file").write_bytes(b"bytes")
            tools.checked([stoker, "volume", "create", "--dir", ready["dir"], "data"])
            tools.checked([stoker, "put", "--dir", ready["dir"], folder / "file", "data/file"])
            tools.checked([stoker, "drain", "--dir", ready["dir"], "data", "--wait"])
            (drain,) = tools.until(lambda: named(collector.seen(), "drain file"), "the span of the drain")
            spans = collector.seen(drain.trace)
            assert (drain.parent, drain.fields["volume"], drain.fields["bytes"]) == ("", "data", 5), drain.fields
            assert ["drain file", "catalog commit"] in [path(spans, span) for span in spans]
            sent = tools.number(ready, "stoker_traces_spans_sent_total")
            assert sent >= len(spans) and tools.number(ready, "stoker_traces_up") == 1, sent
            assert tools.number(ready, "stoker_traces_spans_dropped_total") == 0
            # What ends last is sent, too.
            tools.checked([stoker, "put", "--dir", ready["dir"], folder / "file", "data/last"])
            commits = len(named(collector.seen(), "commit"))
            node.stop()
        assert len(named(collector.seen(), "commit")) >= max(commits, 2)
        return len(spans)


def check_silent(stoker, folder):
    """A collector that is not there, and one that takes requests and never answers: no request notices."""
    folder.mkdir()
    done = 0
    with Collector(holds=True) as silent:
        for name, url in (("gone", f"http://127.0.0.1:{tools.free_port()}"), ("silent", silent.url)):
            place = folder / name
            place.mkdir()
            with Up(stoker, place, url) as up:
                node = json.loads(up.line())
                s3 = client(node)
                for number in range(100):
                    key, body = f"file-{number}", b"%d" % number
                    s3.put_object(Bucket="data", Key=key, Body=body)
                    assert s3.get_object(Bucket="data", Key=key)["Body"].read() == body
                    done += 2

                def read(what):
                    page = tools.get(f"{node['admin']}/metrics", node["token"]).splitlines()
                    return next(float(line.split()[1]) for line in page if line.startswith(f"stoker_traces_{what} "))

                # The silent one is still being asked, or was given up; either way somebody counts.
                tools.until(lambda: read("spans_dropped_total") > 0, "spans are dropped")
                assert read("up") == 0 and read("failures_total") >= 1
                assert read("spans_sent_total") == 0
            assert "traces cannot be sent" in (place / "up.log").read_text()
        assert silent.asked.is_set() and not silent.free.is_set()
    return done


def named(spans, name):
    return [span for span in spans if span.name == name]


def path(spans, span):
    """Names from the top down to a span."""
    ids = {span.id: span for span in spans}
    names = [span.name]
    while span.parent in ids:
        span = ids[span.parent]
        names.append(span.name)
    return names[::-1]
