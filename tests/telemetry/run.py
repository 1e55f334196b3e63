#!/usr/bin/env python3
"""A real Prometheus and a real Alertmanager around three real nodes.

  python3 tests/telemetry/run.py --stoker target/debug/stoker              about a minute
  python3 tests/telemetry/run.py --stoker ... --only rules,metrics         some parts: rules, metrics, alert, events

rules    the shipped alerts: `promtool check` and `promtool test`
metrics  `promtool check metrics` on every node; every name in alerts, dashboard and docs/metrics.md is told by a node
alert    Prometheus scrapes three nodes; one is killed; an alert reaches a webhook by way of Alertmanager
events   an unreachable webhook gets every event of a node, signed, once it is there, also those from before a restart

Needs prometheus, promtool and prometheus-alertmanager; as root on Debian they are installed, unless --no-install is given.
Exit code: 0 passed, 1 something failed, 3 the programs cannot be had here.
"""

import argparse
import pathlib
import shutil
import sys
import tempfile
import time
import traceback

# The checkout stays as it is.
sys.dont_write_bytecode = True

import alerting
import events
import names
import tools

PARTS = ("rules", "metrics", "alert", "events")


def main():
    args = parse()
    if not args.no_install:
        tools.install()
    missing = tools.missing()
    if missing:
        print(f"telemetry: cannot run: this machine has no {', '.join(missing)}", flush=True)
        return 3
    started = time.monotonic()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stoker-telemetry-", dir=args.dir))
    failed = []
    try:
        for part in args.only:
            begun = time.monotonic()
            place = folder / part
            place.mkdir()
            try:
                words = run(part, args.stoker, place)
                print(f"telemetry: {part}: ok, {words}, {time.monotonic() - begun:.0f} s", flush=True)
                # Rings are gibibytes, and the next part has its own.
                if not args.keep:
                    shutil.rmtree(place, ignore_errors=True)
            except Exception:
                failed.append(part)
                traceback.print_exc()
                print(f"telemetry: {part}: FAILED; logs: {place}", flush=True)
    finally:
        if args.keep or failed:
            print(f"telemetry: kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    words = f"FAILED: {', '.join(failed)}" if failed else "passed"
    print(f"telemetry: {words}, {time.monotonic() - started:.0f} s", flush=True)
    return 1 if failed else 0


def run(part, stoker, place):
    match part:
        case "rules":
            return alerting.check_rules(place)
        case "metrics":
            return names.check(stoker, place)
        case "alert":
            return alerting.check(stoker, place)
        case "events":
            return events.check(stoker, place)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", required=True, type=lambda text: pathlib.Path(text).resolve(), help="the program under test")
    parser.add_argument("--only", default=PARTS, type=lambda text: text.split(","), help="parts, with commas between them")
    parser.add_argument("--no-install", action="store_true", help="install nothing")
    parser.add_argument("--dir", help="where to work instead of the system's folder for temporary files")
    parser.add_argument("--keep", action="store_true", help="leave everything behind for a look")
    args = parser.parse_args()
    unknown = [part for part in args.only if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}")
    return args


if __name__ == "__main__":
    sys.exit(main())
