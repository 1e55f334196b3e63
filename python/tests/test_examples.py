"""The programs of `examples/`, run as people run them: each in processes of its own, from the command line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker

from .conftest import Node, program, start

HERE = Path(__file__).resolve()
EXAMPLES = next((above / "examples" for above in HERE.parents if (above / "examples" / "train.py").is_file()), None)
#: For a broken program, not an order of events.
PATIENCE_S = 240


def environment(node: Node, **more: str) -> dict[str, str]:
    # The package that is tested, for programs of any interpreter.
    return dict(os.environ, STOKER_DIR=str(node.folder), PYTHONPATH=str(HERE.parents[1]), PYTHONWARNINGS="ignore", **more)


def command(name: str, *args: object) -> list[str]:
    if EXAMPLES is None:
        pytest.skip("the folder examples/ is not here")
    return [sys.executable, str(EXAMPLES / name), *map(str, args)]


def run(node: Node, name: str, *args: object) -> str:
    done = subprocess.run(
        command(name, *args), env=environment(node), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, f"{name} {args}: {done.stdout}{done.stderr}"
    return done.stdout


def killed(node: Node, at: str, how: signal.Signals, name: str, *args: object) -> tuple[int, str]:
    """Runs it and sends a signal once it has said something; its exit code and what else it said."""
    with subprocess.Popen(command(name, *args), env=environment(node), stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(at):
                child.send_signal(how)
                break
        rest = child.stdout.read()
        return child.wait(PATIENCE_S), rest


def losses(said: str) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(r"^step (\d+) loss (\S+)$", said, re.MULTILINE)}


def volume(node: Node, name: str, *options: str) -> None:
    subprocess.run([program(), "volume", "create", name, *options], env=environment(node), check=True)


def check_goes_on(node: Node, store: stoker.Store, name: str, *where: object, step: str) -> None:
    """Killed in the middle and started again, it is the run that was never killed."""
    args = ("--steps", 24, "--every", 4, "--samples", 512, *where)
    whole = losses(run(node, name, *args, "--run", "data/whole" if "numpy" in name else "stoker://data/whole"))
    assert sorted(whole) == list(range(1, 25))
    broken = "data/broken" if "numpy" in name else "stoker://data/broken"
    code, _ = killed(node, "step 10 ", signal.SIGKILL, name, *args, "--run", broken)
    assert code == -signal.SIGKILL
    said = run(node, name, *args, "--run", broken)
    again = losses(said)
    # The save of step 8 may not have been complete.
    assert re.search(rf"resumed from stoker://data/broken/({step % 4}|{step % 8})/", said), said
    assert max(again) == 24 and all(whole[at] == loss for at, loss in again.items())
    # A run that goes back replaces what it comes to again.
    before = store.find_set(f"data/broken/{step % 20}/")
    back = run(node, name, *args, "--run", broken, "--resume", 16)
    after = store.find_set(f"data/broken/{step % 20}/")
    assert losses(back) == {at: loss for at, loss in whole.items() if at > 16}
    assert before is not None and after is not None and before.id != after.id
    assert [one.name for one in store.list("data/broken")] == [step % at for at in (16, 20, 24)]


def test_training_without_torch(node: Node, store: stoker.Store) -> None:
    pytest.importorskip("numpy")
    check_goes_on(node, store, "train_numpy.py", "--data", "data/plain/train", step="step-%06d")


@pytest.fixture
def own() -> Iterator[Node]:
    """A node of its own, so that runs of other tests are not in its volumes."""
    with tempfile.TemporaryDirectory(prefix="stoker-examples-") as folder:
        node = start(Path(folder))
        yield node
        node.process.terminate()
        node.process.wait()


def test_training(own: Node) -> None:
    pytest.importorskip("torch")
    store = stoker.connect(dir=own.folder)
    check_goes_on(own, store, "train.py", step="step-%d")
    # With what the script recommends, and torch's own thread: every second one goes to the lake and stays.
    volume(own, "run", "--drain", "on-demand")
    run(own, "train.py", "--steps", 24, "--every", 4, "--samples", 512, "--drain-every", 2, "--keep", 1, "--async")
    assert [one.name for one in store.list("run")] == ["step-16", "step-24", "step-8"]
    assert store.exists("run/step-8/_STOKER_KEEP")
    # A scheduler that takes the machine away: one more save, and a good end.
    code, said = killed(own, "step 30 ", signal.SIGTERM, "train.py", "--steps", 4000, "--every", 1000, "--samples", 512)
    saved = re.search(r"saved stoker://run/step-(\d+)/: 1 copies", said)
    assert code == 0 and saved is not None and int(saved[1]) >= 30, said


def test_the_script_of_the_document(own: Node, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert EXAMPLES is not None
    document = (EXAMPLES.parent / "docs" / "python.md").read_text()
    found = re.search(r"^```python\n(# train\.py\n.*?)^```$", document, re.MULTILINE | re.DOTALL)
    assert found is not None
    script = tmp_path / "train.py"
    script.write_text(found[1])

    def once() -> str:
        made = [sys.executable, str(script)]
        done = subprocess.run(made, env=environment(own), capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "stoker://data/run/step-200/ 1 copies" in once()
    store = stoker.connect(dir=own.folder)
    assert [one.name for one in store.list("data/run")] == ["step-100", "step-150", "step-200"]
    # The last one is lost: it goes on from the one before, and a third start has nothing to do.
    store.remove(*(one.path for one in store.list("data/run/step-200", recursive=True)))
    again = once()
    assert "resumed from stoker://data/run/step-150/" in again and "step-200/ 1 copies" in again
    assert once() == "resumed from stoker://data/run/step-200/\n"


def test_training_with_two_ranks(own: Node) -> None:
    pytest.importorskip("torch")
    volume(own, "run")
    made = command("train.py", "--steps", 8, "--every", 4, "--samples", 256)
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *made[1:]]
    done = subprocess.run(ranks, env=environment(own), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    store = stoker.connect(dir=own.folder)
    assert store.latest("run/") == "stoker://run/step-8/"
    assert {one.name for one in store.list("run/step-8/")} >= {".metadata", "__0_0.distcp", "__1_0.distcp"}
    # One rank goes on where two were.
    assert "resumed from stoker://run/step-8/" in run(own, "train.py", "--steps", 9, "--samples", 256)


@pytest.mark.parametrize("name", ["infer.py", "infer_torch.py"])
def test_inference(node: Node, name: str) -> None:
    pytest.importorskip("torch" if "torch" in name else "numpy")
    cache = "kv-" + name.partition(".")[0].replace("_", "-")
    volume(node, cache, "--drain", "never")
    where = ("--cache", f"{cache}/toy")
    first, second = run(node, name, *where), run(node, name, *where)
    counts = re.compile(r"(\d+) blocks computed, (\d+) from the cache")
    made, found = counts.search(first), counts.search(second)
    assert made is not None and int(made[1]) > 0
    assert found is not None and found[1] == "0" and int(found[2]) == int(made[1]) + int(made[2])

    def results(said: str) -> list[str]:
        return re.findall(r"^[0-9a-f]{16}|sum \S+", said, re.MULTILINE)

    assert results(first) and results(first) == results(second), "what is found is what was computed"


def test_s3(node: Node) -> None:
    interpreter = os.environ.get("STOKER_PYTHON_BOTO3")
    if not interpreter:
        pytest.skip("boto3 is not here: run.py gets it")
    keys = {"AWS_ENDPOINT_URL": node.said["s3"], "AWS_DEFAULT_REGION": node.said["region"]}
    keys |= {"AWS_ACCESS_KEY_ID": node.said["access_key"], "AWS_SECRET_ACCESS_KEY": node.said["secret_key"]}
    done = subprocess.run(
        [interpreter, *command("s3.py")[1:]], env=environment(node, **keys), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "published s3-example/step-1: published, 2 shards" in done.stdout


def test_home_directories_by_nfs(tmp_path: Path) -> None:
    script = command("nfs_home.sh")[1]
    mounted = tmp_path / "home"
    with tempfile.TemporaryDirectory(prefix="stoker-examples-") as folder:
        node = start(Path(folder), "--nfs", "127.0.0.1:0", "--nfs-export", "home:allow=127.0.0.0/8,keep-root")
        try:
            address = node.said["nfs"]
            given = environment(node, STOKER=program(), STOKER_HOME_DIRECTORY=str(mounted))
            done = subprocess.run(["sh", script, address, "nobody"], env=given, capture_output=True, text=True, timeout=PATIENCE_S)
            assert "home" in stoker.connect(dir=node.folder).volumes()
            host, _, port = address.rpartition(":")
            line = f"mount -t nfs -o vers=3,tcp,port={port},mountport={port},nolock {host}:/home {mounted}"
            if done.returncode == 3:
                # The suite `guest` has a kernel with NFS; here it is what would be mounted that counts.
                assert line in done.stdout
                return
            assert done.returncode == 0, done.stdout + done.stderr
            assert (mounted / "nobody").is_dir() and done.stdout.split() == [str(mounted / "nobody")]
        finally:
            subprocess.run(["umount", "-l", str(mounted)], capture_output=True)
            node.process.terminate()
            node.process.wait()
