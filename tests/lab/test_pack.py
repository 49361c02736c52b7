"""`neurocoder pack`: one file a sweep, and nothing lost on the way."""

import gzip
import json
import multiprocessing
import os
import pathlib
import sys
import time
from itertools import pairwise

import pytest
from test_store import loose, place, run, told

from neurocoder.lab.records import pack, store

RUNS = [run(seed=seed, error=error) for seed, error in ((0, 0.1 + 0.2), (1, 0.25), (10, 0.5))]


def packed(output, name="best"):
    return output / "lines" / f"{name}.jsonl.gz"


def files(output):
    return sorted(path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file())


def do(output, into=None):
    return pack.main(pack.Options(output, into))


def test_loose_records_become_rows_of_one_file_for_each_preset(tmp_path, capsys):
    loose(tmp_path, *RUNS, run("gru", preset="paper"))
    loose(tmp_path / "deep", run())
    checkpoint = place(tmp_path, RUNS[0]).with_name("seed7.checkpoint.safetensors")
    checkpoint.write_text("")
    assert do(tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{packed(tmp_path / 'deep')}: 1 packed, 1 runs in all",
        f"{packed(tmp_path)}: 3 packed, 3 runs in all",
        f"{packed(tmp_path, 'paper')}: 1 packed, 1 runs in all",
    ]
    names = ["deep/lines/best.jsonl.gz", "lines/best.jsonl.gz", checkpoint.relative_to(tmp_path).as_posix()]
    assert files(tmp_path) == sorted([*names, "lines/paper.jsonl.gz"])
    assert not (tmp_path / "lines" / "paper").exists()  # a folder that is empty goes
    rows = gzip.decompress(packed(tmp_path).read_bytes()).decode().splitlines()
    assert [(row["seed"], row["metrics"]["error"]) for row in map(json.loads, rows)] == [
        (0, 0.1 + 0.2),
        (1, 0.25),
        (10, 0.5),
    ]
    assert do(tmp_path) == 0
    assert capsys.readouterr().out == f"No loose records under {tmp_path}: nothing to pack.\n"


def test_equal_content_gives_equal_bytes(tmp_path, monkeypatch):
    for output, runs in ((tmp_path / "a", RUNS), (tmp_path / "b", RUNS[::-1])):
        loose(output, *runs)
        monkeypatch.setattr(time, "time", lambda: 1e9 + len(files(tmp_path)))
        assert do(output) == 0
    loose(tmp_path / "c", RUNS[1])
    assert do(tmp_path / "c") == 0
    loose(tmp_path / "c", RUNS[0], RUNS[2])
    assert do(tmp_path / "c") == 0
    one, *others = {packed(tmp_path / name).read_bytes() for name in "abc"}
    assert (len(one) > 100, others) == (True, [])


def test_histories_are_thinned_and_rounded_metrics_are_exact(tmp_path):
    history = [{"step": step, "error": 1 / (step + 1), "loss": 2 / 3} for step in range(1, 1001)]
    long = run(seed=1)
    long.history, long.metrics = history, {"error": history[-1]["error"]}
    long.observations = {"mean": [[1 / 3, 2, True, "x", None]], "floor": {"is": 1e-9 / 3}}
    loose(tmp_path, long)
    assert do(tmp_path) == 0
    (found,) = store.records(tmp_path, "lines", pytest.fail)
    assert found.metrics == long.metrics
    assert (len(found.history), found.history[-1]) == (100, history[-1])
    steps = [entry["step"] for entry in found.history]
    assert (steps[0], {b - a for a, b in pairwise(steps)}) == (1, {10, 11})
    assert found.history[1] == {"step": 11, "error": 0.0833333, "loss": 0.666667}
    assert found.observations == {"mean": [[0.333333, 2, True, "x", None]], "floor": {"is": 3.33333e-10}}
    assert pack.thinned(found) == found


def test_a_repeated_run_replaces_the_packed_one_and_is_named(tmp_path, capsys):
    loose(tmp_path, *RUNS)
    assert do(tmp_path) == 0
    loose(tmp_path, run(seed=1, error=0.125), RUNS[2], run(config={"steps": 4}))
    capsys.readouterr()
    assert do(tmp_path) == 0
    assert capsys.readouterr().out == (
        f"{packed(tmp_path)}: 3 packed, 4 runs in all; replaced earlier runs of the same configuration: linear seed 1\n"
    )
    assert [error for *_, error in told(store.records(tmp_path, "lines", pytest.fail))] == [0.1 + 0.2, 0.5, 0.125, 0.5]


def test_damaged_files_are_named_and_stay(tmp_path, capsys):
    loose(tmp_path, *RUNS)
    path = place(tmp_path, RUNS[1])
    path.write_text(path.read_text().replace("0.25", "0.125"))
    assert do(tmp_path) == 1
    captured = capsys.readouterr()
    assert captured.out == f"{packed(tmp_path)}: 2 packed, 2 runs in all\n"
    assert captured.err == f"warning: {path} does not match its digest: was it edited?; left where it is\n"
    assert files(tmp_path) == ["lines/best.jsonl.gz", path.relative_to(tmp_path).as_posix()]
    content = packed(tmp_path).read_bytes()[:-20]
    packed(tmp_path).write_bytes(content)
    loose(tmp_path, *RUNS)
    assert do(tmp_path) == 1
    captured = capsys.readouterr()
    assert captured.out == f"{packed(tmp_path)}: nothing packed\n"
    assert captured.err.startswith(f"warning: {packed(tmp_path)} is damaged after line")
    assert captured.err.count("\n") == 1
    assert (packed(tmp_path).read_bytes(), len(files(tmp_path))) == (content, 4)


def test_a_run_that_is_repeated_meanwhile_stays(tmp_path, monkeypatch):
    loose(tmp_path, *RUNS)
    write = pack.write

    def slow(*arguments):
        write(*arguments)
        loose(tmp_path, run(seed=1, error=0.125))

    monkeypatch.setattr(pack, "write", slow)
    assert do(tmp_path) == 0
    assert [error for *_, error in told(store.records(tmp_path, "lines", pytest.fail))] == [0.1 + 0.2, 0.125, 0.5]


def test_what_does_not_read_back_is_not_trusted(tmp_path, monkeypatch):
    loose(tmp_path, *RUNS)
    before = files(tmp_path)
    monkeypatch.setattr(gzip, "decompress", lambda data: b"")
    with pytest.raises(OSError, match=r"best.jsonl.gz cannot be written: it is not read back as it was written"):
        do(tmp_path)
    assert files(tmp_path) == before


def test_the_folder_must_be_there(tmp_path):
    with pytest.raises(ValueError, match=r"--records must be a folder with records, got .*none"):
        do(tmp_path / "none")


FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["neurocoder.lab.records.pack"])  # so that a process starts at once


def hooked(hook, output, into):
    """A `pack` after some code."""
    exec(hook, {"dying": dying, "gzip": gzip, "os": os, "pathlib": pathlib, "time": time})
    sys.stdout = None
    pack.main(pack.Options(output, into))


def process(hook, output, into):
    """That in a process of its own."""
    made = FORK.Process(target=hooked, args=(hook, output, into))
    made.start()
    return made


def dying(function, at, after=False):
    """The function, but the process is killed in its call number `at`."""
    times = [0]

    def call(*arguments, **options):
        times[0] += 1
        if times[0] == at and not after:
            os.kill(os.getpid(), 9)
        answer = function(*arguments, **options)
        if times[0] == at:
            os.kill(os.getpid(), 9)
        return answer

    return call


def status(process):
    """How it ended."""
    process.join(60)
    return process.exitcode


STAGES = {
    "before the packed file is written": "gzip.compress = dying(gzip.compress, 1)",
    "in the middle of writing it": (
        "gzip.compress = lambda *_, **__: b'half'\nos.fsync = dying(os.fsync, 1, after=True)"
    ),
    "before it is read back": "os.fsync = dying(os.fsync, 1)",
    "before it has its name": "os.replace = dying(os.replace, 1)",
    "once it has its name": "os.replace = dying(os.replace, 1, after=True)",
    "before the second loose file is removed": (
        "pathlib.Path.unlink = dying(pathlib.Path.unlink, 3)"  # the first call is for the temporary name
    ),
    "before the lock is removed": "pathlib.Path.rmdir = dying(pathlib.Path.rmdir, 3, after=True)",
}


@pytest.mark.parametrize("moved", [False, True], ids=["same folder", "another folder"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_pack_loses_nothing_and_the_next_completes_it(tmp_path, stage, moved):
    output, into = tmp_path / "runs", tmp_path / ("results" if moved else "runs")
    earlier = run("gru", error=0.75)
    pack.write(packed(into), [earlier])
    loose(output, *RUNS)
    assert status(process(STAGES[stage], output, into)) == -9
    found = {store.key(one): one for folder in (output, into) for one in store.records(folder, "lines", pytest.fail)}
    assert told(found[name] for name in sorted(found)) == told([earlier, *RUNS])
    loose(output, run(seed=2))  # so that there is something to do
    assert do(output, into) == 0
    assert told(store.records(into, "lines", pytest.fail)) == told([earlier, *RUNS[:2], run(seed=2), RUNS[2]])
    assert files(into) == ["lines/best.jsonl.gz"]
    assert files(output) == ([] if moved else ["lines/best.jsonl.gz"])


def test_two_at_the_same_time_lose_nothing(tmp_path):
    for name, one in zip("abc", RUNS, strict=True):
        loose(tmp_path / name, one)
    lock = packed(tmp_path / "into").with_name(".best.jsonl.gz.lock")
    slow = "fsync = os.fsync\nos.fsync = lambda file: fsync(file) or time.sleep(1.5)"
    first = process(slow, tmp_path / "a", tmp_path / "into")
    while not lock.exists():
        assert first.is_alive()
        time.sleep(0.01)
    second = process("", tmp_path / "b", tmp_path / "into")
    assert do(tmp_path / "c", tmp_path / "into") == 0
    assert (status(first), status(second)) == (0, 0)
    assert told(store.records(tmp_path / "into", "lines", pytest.fail)) == told(RUNS)
    assert files(tmp_path) == ["into/lines/best.jsonl.gz"]
