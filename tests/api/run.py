#!/usr/bin/env python3
"""The admin API of a real cell against its own OpenAPI document, by schemathesis.

  python3 tests/api/run.py --stoker target/debug/stoker                  both roles; the changing calls, too
  python3 tests/api/run.py --stoker ... --examples 200 --seed 7          longer, repeatable
  python3 tests/api/run.py --stoker ... -- --include-path /api/v1/risk   what follows goes to schemathesis

The cell is thrown away: nodes are quarantined and evacuated, volumes made and removed. Libraries are pinned and kept in
STOKER_CACHE (~/.cache/stoker-tests). Exit code: 0 passed, 1 something failed, 3 what it needs could not be had.
"""

import argparse
import http.client
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "clients"))

import tools  # noqa: E402
from filled_cell import Cell  # noqa: E402

NOT_HERE = 3

# What an answer is judged by. Judges that are left out: a request that fits the document may still name what is not there
# (`positive_data_acceptance`), deleting a volume twice is no use after free (`use_after_free`), and who guesses tokens gets 429
# after a while, where `ignored_auth` wants 401; `strangers` looks at that here.
CHECKS = ",".join(
    ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
    + ["negative_data_rejection", "unsupported_method", "allow_header_conformance"]
)

# Calls that take the cell away from under the others: the catalog moves, or somebody lets its standbys go.
LAST = r"/api/v1/(catalog/(promote|detach)|join-token/rotate|session/end)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", required=True, type=pathlib.Path, help="the program")
    parser.add_argument("--examples", type=int, default=25, help="requests of each kind for each call")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("more", nargs="*", help="arguments of schemathesis")
    args = parser.parse_args()
    try:
        programs = tools.install(("schemathesis",), HERE / "requirements")
    except tools.Missing as why:
        print(f"api: {why}", file=sys.stderr)
        return NOT_HERE
    failed = []
    with tempfile.TemporaryDirectory(prefix="stoker-api-") as folder, Cell(args.stoker.resolve(), folder) as cell:
        cell.fill()
        document = json.loads(cell.get("/api/v1/openapi.json"))
        calls = sum(len(path) for path in document["paths"].values())
        print(f"api: {calls} calls in the document")
        failed += strangers(cell.nodes[0]["admin"], document)
        for role, chosen in (
            ("view_token", []),
            ("token", ["--exclude-path-regex", LAST]),
            ("token", ["--include-path-regex", LAST]),
        ):
            if not judge(programs["schemathesis"], cell, role, chosen, args, folder):
                failed.append(f"{role} {' '.join(chosen)}")
        # A cell that was treated like this still answers.
        status = json.loads(cell.get("/api/v1/status"))
        print(f"api: the node is {'ready' if status['ready'] else 'NOT ready'} at the end")
        if not status["ready"]:
            failed.append("the node is not ready")
    for one in failed:
        print(f"api: FAILED: {one}", file=sys.stderr)
    return 1 if failed else 0


def strangers(admin, document):
    """Paths that answer somebody without a token, although they are neither health nor the login form."""
    open_paths = {"/healthz", "/readyz", "/login"}
    asked = [("GET", path) for path in ("/", "/metrics", "/console/app.js", "/api", "/api/v1/nothing", *open_paths)]
    for path, calls in document["paths"].items():
        filled = path.replace("{", "").replace("}", "")
        asked += [(method.upper(), filled) for method, call in calls.items() if call["security"]]
    wrong = []
    host, port = admin.removeprefix("http://").split(":")
    for method, path in asked:
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request(method, path)
        status = connection.getresponse().status
        connection.close()
        expected = (200,) if path in open_paths else (303,) if path == "/" else (401,)
        if status not in expected:
            wrong.append(f"{method} {path} without a token: {status}")
    print(f"api: {len(asked)} paths asked without a token, {len(wrong)} of them wrong")
    return wrong


def judge(programs, cell, role, chosen, args, folder):
    ready = cell.nodes[0]
    command = [str(programs / "schemathesis"), "run", f"{ready['admin']}/api/v1/openapi.json"]
    command += ["--header", f"Authorization: Bearer {ready[role]}", "--checks", CHECKS, "--phases", "examples,coverage,fuzzing"]
    command += ["--max-examples", str(args.examples), "--seed", str(args.seed), "--workers", "1", "--rate-limit", "60/s"]
    command += ["--request-timeout", "130", "--continue-on-failure", "--warnings", "off", *chosen, *args.more]
    print(f"api: as {'operator' if role == 'token' else 'viewer'}: {' '.join(chosen)}", flush=True)
    environment = {**os.environ, "NO_COLOR": "1", "HOME": folder, "COLUMNS": "140"}
    return subprocess.run(command, cwd=folder, env=environment).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
