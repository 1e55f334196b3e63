"""What the suite `telemetry` has for all: processes, waiting, numbers of a node."""

import importlib.util
import pathlib

PATH = pathlib.Path(__file__).resolve().parents[1] / "telemetry" / "tools.py"
spec = importlib.util.spec_from_file_location("telemetry_tools", PATH)
tools = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tools)

Program, until, free_port, get, checked = tools.Program, tools.until, tools.free_port, tools.get, tools.checked


def number(ready, name):
    """The sum of a number on the page of a node, over its labels."""
    lines = [line for line in get(f"{ready['admin']}/metrics").splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
