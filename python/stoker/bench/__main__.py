"""``python -m stoker.bench``: see ``--help``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import stoker

from . import __doc__ as about
from . import checkpoint, gpu, kv, loader, planning
from .ground import machine, parse_size, say
from .svg import picture

BENCHES = {"loader": loader, "checkpoint": checkpoint, "kv": kv, "gpu": gpu, "plan": planning}


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m stoker.bench", description=about, formatter_class=raw)
    verbs = parser.add_subparsers(dest="bench", required=True, metavar="|".join(BENCHES))
    for name, module in BENCHES.items():
        text = (module.__doc__ or "").replace("``", "`").partition(": ")[2]
        verb = verbs.add_parser(name, help=text, description=text)
        verb.add_argument("--dir", type=Path, default=Path(), help="a directory on the drive (default: this one)")
        verb.add_argument("--ring", type=parse_size, metavar="SIZE", help="of the node's ring (default: what the data needs)")
        verb.add_argument("--json", action="store_true", help="print one JSON document")
        verb.add_argument("--svg", type=Path, metavar="FILE", help="write a picture, too")
        module.arguments(verb)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        here = machine(args.dir)
        report = BENCHES[args.bench].run(args)
    except (OSError, ValueError) as fault:
        say(f"stoker.bench: {fault}")
        return 1
    except KeyboardInterrupt:
        say("stoker.bench: interrupted")
        return 130
    report.machine = {**here, **report.machine, "stoker": stoker.__version__}
    if args.svg:
        args.svg.write_text(picture(report))
    try:
        if args.json:
            print(json.dumps(report.json(), indent=2))
        else:
            print(report.table())
            print("\n".join(f"{name}: {value}" for name, value in report.machine.items()), file=sys.stderr)
    except BrokenPipeError:
        sys.stderr.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
