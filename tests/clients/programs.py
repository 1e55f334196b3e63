"""Running client programs and making the files that they copy."""

import pathlib
import subprocess

from harness import MIB, content, same


class Program:
    """A program with its first arguments and an environment."""

    def __init__(self, command, environment):
        self.command, self.environment = command, environment

    def __call__(self, *args, stdin=None, expect=0):
        """Runs it; returns its standard output as bytes."""
        done = subprocess.run(
            [*self.command, *map(str, args)], input=stdin, capture_output=True, env=self.environment, timeout=1800
        )
        if done.returncode != expect:
            words = (done.stderr or done.stdout).decode(errors="replace").strip()[-800:]
            raise AssertionError(f"{pathlib.Path(self.command[0]).name} {' '.join(map(str, args))}: "
                                 f"ended with {done.returncode} instead of {expect}: {words}")
        return done.stdout

    def text(self, *args, **more):
        return self(*args, **more).decode()

    def fails(self, *args):
        """Runs what has to fail; returns its words."""
        done = subprocess.run(
            [*self.command, *map(str, args)], capture_output=True, env=self.environment, timeout=600
        )
        assert done.returncode != 0, f"{args} did not fail"
        return (done.stderr + done.stdout).decode(errors="replace")


FILES = {
    "empty": 0,
    "one": 1,
    "block": 4096,
    "dir/odd size": 70_001,
    "dir/sub/ümlaut.bin": 12_345,
    "dir/sub/plus+and&.bin": 1_000_000,
    "large.bin": 20 * MIB + 7,
}


def make_tree(folder):
    """A tree with small, large, empty and oddly named files; returns {name: bytes}."""
    tree = {}
    for name, size in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        tree[name] = content(f"{folder.name}/{name}", size)
        path.write_bytes(tree[name])
    return tree


def read_tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same_trees(got, expected, what):
    assert sorted(got) == sorted(expected), f"{what}: {sorted(got)} instead of {sorted(expected)}"
    for name, body in expected.items():
        same(got[name], body, f"{what}: {name}")
