"""Rules, and the way of an alert: nodes, Prometheus, Alertmanager, webhook."""

import json
import os
import signal
import urllib.parse

import names
import tools

SHIPPED = tools.ROOT / "deploy" / "prometheus"


def check_rules(folder):
    (folder / "dashboard.yml").write_text(json.dumps(dashboard_as_rules()))
    tools.checked(["promtool", "check", "rules", folder / "dashboard.yml"])
    tools.checked(["promtool", "check", "rules", "alerts.yml"], cwd=SHIPPED)
    tools.checked(["promtool", "check", "config", "--syntax-only", "prometheus.yml"], cwd=SHIPPED)
    tools.checked(["promtool", "test", "rules", "alerts.test.yml"], cwd=SHIPPED)
    return "alerts.yml, alerts.test.yml, prometheus.yml, every expression of the dashboard"


def dashboard_as_rules():
    """The expressions of the dashboard, where promtool reads them; Grafana's own words have values."""
    words = {"$__rate_interval": "5m", "$job": "stoker", "$instance": ".*"}
    rules = []
    for panel in names.panels(json.loads(names.DASHBOARD.read_text())):
        for target in panel.get("targets", []):
            expression = target["expr"]
            for word, value in words.items():
                expression = expression.replace(word, value)
            rules.append({"record": "dashboard:panel", "expr": expression, "labels": {"at": str(len(rules))}})
    return {"groups": [{"name": "dashboard", "rules": rules}]}


def check(stoker, folder):
    with tools.Cluster(stoker, folder) as cluster, tools.Hook() as hook:
        manager = start_alertmanager(folder, hook.port)
        with manager, start_prometheus(folder, cluster, manager.port) as prometheus:
            targets = [node["admin"].removeprefix("http://") for node in cluster.nodes]
            tools.until(lambda: up(prometheus, "1") == sorted(targets), "all three nodes are scraped")
            bytes_written = query(prometheus, 'sum(stoker_ring_padding_bytes_total{job="stoker"})')
            assert len(bytes_written) == 1, bytes_written
            # Alerts that fire now would be lies: nothing is wrong yet.
            firing = query(prometheus, 'ALERTS{alertstate="firing"}')
            assert firing == [], firing
            victim = cluster.nodes[2]
            os.kill(victim["pid"], signal.SIGKILL)
            seen = {}
            while "StokerNodeDown" not in seen:
                headers, body = hook.next("an alert of a node that was killed")
                for alert in json.loads(body)["alerts"]:
                    seen[alert["labels"]["alertname"]] = alert
            down = seen["StokerNodeDown"]
            assert down["status"] == "firing", down
            assert down["labels"]["peer"] == victim["name"], down
            assert down["labels"]["severity"] == "page", down
            tools.until(lambda: up(prometheus, "0") == [victim["admin"].removeprefix("http://")], "Prometheus misses it, too")
            return f"{down['annotations']['summary']!r} arrived; before it {sorted(set(seen) - {'StokerNodeDown'})}"


def up(prometheus, value):
    return sorted(sample["metric"]["instance"] for sample in query(prometheus, f'up{{job="stoker"}} == {value}'))


def query(prometheus, expression):
    answer = tools.get(f"{prometheus.url}/api/v1/query?query={urllib.parse.quote(expression)}")
    return json.loads(answer)["data"]["result"]


def start_prometheus(folder, cluster, manager_port):
    """One that has the shipped rules and looks every second."""
    port = tools.free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(SHIPPED / "alerts.yml")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{manager_port}"]}]}]},
        # Each node has a token of its own, so each is a job; the rules know them as one.
        "scrape_configs": [
            {
                "job_name": node["name"],
                "authorization": {"type": "Bearer", "credentials_file": f"{node['dir']}/view-token"},
                "static_configs": [{"targets": [node["admin"].removeprefix("http://")], "labels": {"job": "stoker"}}],
            }
            for node in cluster.nodes
        ],
    }
    # JSON is YAML.
    (folder / "prometheus.yml").write_text(json.dumps(config))
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    url = f"http://127.0.0.1:{port}"
    program = tools.Program(command, folder / "prometheus.log", lambda: tools.get(f"{url}/-/ready"))
    program.url = url
    return program


def start_alertmanager(folder, hook_port):
    """One that hands everything on at once."""
    port = tools.free_port()
    config = {
        "route": {"receiver": "hook", "group_by": ["alertname"], "group_wait": "0s", "group_interval": "1s"},
        "receivers": [{"name": "hook", "webhook_configs": [{"url": f"http://127.0.0.1:{hook_port}/alerts"}]}],
    }
    (folder / "alertmanager.yml").write_text(json.dumps(config))
    command = ["prometheus-alertmanager", f"--config.file={folder / 'alertmanager.yml'}"]
    command += [f"--storage.path={folder / 'alerts'}", f"--web.listen-address=127.0.0.1:{port}"]
    # Alone: it looks for no others.
    command += ["--cluster.listen-address=", "--log.level=warn"]
    ready = f"http://127.0.0.1:{port}/-/ready"
    program = tools.Program(command, folder / "alertmanager.log", lambda: tools.get(ready))
    program.port = port
    return program
