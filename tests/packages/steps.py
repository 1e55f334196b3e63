"""What the steps share: commands that must work, and how what lacks is said."""

import shutil
import subprocess

NOT_HERE = 3
# A slow machine is slow.
SECONDS_MAX = 900


class Missing(Exception):
    """What cannot be had here."""


class Failed(Exception):
    """What went wrong."""


def say(text):
    print(f"packages: {text}", flush=True)


def need(*programs):
    for program in programs:
        if shutil.which(program) is None:
            raise Missing(f"this machine has no {program}")


def run(command, fails=False, **options):
    """Runs a command to its end and gives what it says; with `fails` it has to fail."""
    command = [str(part) for part in command]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=SECONDS_MAX, check=False, **options,
    )  # fmt: skip
    if (done.returncode == 0) == fails:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def hold(is_true, what):
    if not is_true:
        raise Failed(what)
