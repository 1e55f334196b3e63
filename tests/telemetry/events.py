"""Events: to a file, and to a webhook that is not there at first."""

import hashlib
import hmac
import json
import os
import signal

import tools

SECRET = "open sesame"


def check(stoker, folder):
    port = tools.free_port()
    (folder / "secret").write_text(f"{SECRET}\n")
    config = folder / "node.toml"
    config.write_text(
        f"""[node]
dir = "{folder / 'node'}"
memory = "1GiB"
[s3]
listen = ["127.0.0.1:0"]
[admin]
listen = "127.0.0.1:0"
[events]
webhooks = ["http://127.0.0.1:{port}/events"]
webhook_secret_file = "{folder / 'secret'}"
"""
    )
    command = [stoker, "serve", "--config", config, "--json"]
    # Nobody is there. The node is killed: what it wrote down is all that is left.
    with tools.Program(command, folder / "first.log") as node:
        ready = json.loads(node.line())
        tools.until(lambda: number(ready, "stoker_webhook_failures_total") >= 1, "a try that failed")
        assert number(ready, "stoker_webhook_up") == 0
        assert number(ready, "stoker_webhook_waiting") >= 1
        os.kill(ready["pid"], signal.SIGKILL)
        node.process.wait()
    with tools.Program(command, folder / "second.log") as node:
        ready = json.loads(node.line())
        # It comes, and is not well at first.
        with tools.Hook(port, statuses=[500, 503]) as hook:
            got = [hook.next("events") for _ in range(2)]
            tools.until(lambda: number(ready, "stoker_webhook_waiting") == 0, "nothing waits")
            node.stop()
            got.append(hook.next("the event of the stop"))
    kinds = [check_one(headers, body) for headers, body in got]
    assert kinds == ["node_started", "node_started", "node_stopping"], kinds
    lines = [json.loads(line) for line in (folder / "node" / "events.jsonl").read_text().splitlines()]
    assert [line["seq"] for line in lines] == [1, 2, 3], lines
    assert [line["kind"] for line in lines] == kinds, lines
    assert [json.loads(body) for _, body in got] == lines
    # A third start sends nothing twice.
    with tools.Hook(port) as hook, tools.Program(command, folder / "third.log") as node:
        node.line()
        event = json.loads(hook.next("the event of the start")[1])
        assert (event["seq"], event["kind"]) == (4, "node_started"), event
    return "three events kept over a kill, signed, in order, none twice"


def check_one(headers, body):
    event = json.loads(body)
    headers = {name.lower(): value for name, value in headers.items()}
    assert headers["stoker-event-id"] == event["id"], headers
    time, sum = (part.split("=", 1)[1] for part in headers["stoker-signature"].split(","))
    expect = hmac.new(SECRET.encode(), f"{time}.".encode() + body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(sum, expect), headers
    return event["kind"]


def number(ready, name):
    for line in tools.metrics(ready).splitlines():
        if line.startswith(name):
            return float(line.rsplit(" ", 1)[1])
    return 0
