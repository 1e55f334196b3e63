#!/usr/bin/env python3
"""The tests of the Python package, against a real node.

  python3 python/tests/run.py --stoker target/debug/stoker                 what every check runs: without torch
  python3 python/tests/run.py --stoker ... --tier full                     with torch and other real libraries, which pip gets
  python3 python/tests/run.py --stoker ... -- -k fsspec                    what follows goes to pytest

The binding is the one that cargo built beside the program (lib_stoker.so). Libraries are pinned and kept in STOKER_CACHE
(~/.cache/stoker-tests). Exit code: 0 passed, 1 something failed, 3 what it needs could not be had.
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

# The checkout stays as it is.
sys.dont_write_bytecode = True

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "tests" / "clients"))

import tools  # noqa: E402

NOT_HERE = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stoker", required=True, type=pathlib.Path, help="the program")
    parser.add_argument("--tier", choices=("quick", "full"), default="quick")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest")
    args = parser.parse_args()
    binding = args.stoker.resolve().parent / "lib_stoker.so"
    if not binding.is_file():
        print(f"python: {binding} is not there: cargo build --workspace", file=sys.stderr)
        return 1
    try:
        programs = tools.install(("python-" + args.tier,), HERE / "requirements")
    except tools.Missing as why:
        print(f"python: {why}", file=sys.stderr)
        return NOT_HERE
    interpreter = programs["python-" + args.tier] / "python"
    try:
        boto3 = tools.install(("boto3",))["boto3"] / "python"
    except tools.Missing as why:
        # One test needs it, and says so.
        print(f"python: {why}", file=sys.stderr)
        boto3 = None
    with tempfile.TemporaryDirectory(prefix="stoker-package-") as folder:
        package = pathlib.Path(folder)
        # pytest puts the folder of the tests first on the path, so they lie beside the package that is to be tested.
        for part in ("stoker", "tests", "pyproject.toml"):
            source, ignored = HERE.parent / part, shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(source, package / part, ignore=ignored) if source.is_dir() else shutil.copy(source, package)
        # The programs that documents show are tests, too.
        shutil.copytree(HERE.parent.parent / "examples", package / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        (package / "docs").mkdir()
        shutil.copy(HERE.parent.parent / "docs" / "python.md", package / "docs")
        shutil.copy(binding, package / "stoker" / "_stoker.abi3.so")
        environment = dict(os.environ, STOKER_BIN=str(args.stoker.resolve()), PYTHONPATH=folder, PYTHONDONTWRITEBYTECODE="1")
        if boto3 is not None:
            environment["STOKER_PYTHON_BOTO3"] = str(boto3)
        # Who starts this in the background of a shell has it ignore SIGINT, and so would all programs of the tests.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        command = [str(interpreter), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        return 1 if subprocess.run([*command, *args.pytest], env=environment, cwd=folder).returncode else 0


if __name__ == "__main__":
    sys.exit(main())
