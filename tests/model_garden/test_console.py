"""What commands show and what goes to their logs, by programs that import no framework."""

import io
import json
import os
import signal
import subprocess
import sys
import types
import warnings

import pytest

pytest.importorskip("official")

from absl import logging
from support.garden import ROOT

from tf_lamb.model_garden.common import batches
from tf_lamb.model_garden.common.console import Console, ProgressBar

PROGRAM = """
import os, signal, sys, warnings
from absl import flags, logging
from tf_lamb.core.messages import warn
from tf_lamb.model_garden.common.console import Console
flags.FLAGS(["program", *sys.argv[1:]])
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored

def all_speak(when):
    logging.warning("absl, %s", when)
    print(f"Python, {when}", file=sys.stderr)
    os.system(f"echo C++, {when} >&2")
    warnings.warn(f"a host, {when}")
    print(f"ours, {when}")
"""
SPEAKERS = ("absl", "Python", "C++", "a host")


def run(code, *flags, folder, code_of_exit=0):
    """stdout and stderr of a program; its temporary files are in the folder."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + code, *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert done.returncode == code_of_exit, done.stderr
    return done.stdout, done.stderr


def test_what_others_say_is_in_the_log_and_nothing_of_it_on_the_console(tmp_path):
    code = f"""
with Console() as console:
    all_speak("early")
    console.keep_in("{tmp_path}/model", "train.log")
    all_speak("later")
    warn("mind the batch")
os.write(2, b"after it")
"""
    for starts in (1, 2):  # the second goes on in the log of the first
        out, said = run(code, folder=tmp_path)
        path = f"{tmp_path}/model/train.log"
        assert out == f"ours, early\nFull log: {path}\nours, later\n"
        assert said == "UserWarning: mind the batch\nafter it"
        log = (tmp_path / "model" / "train.log").read_text()
        for who in SPEAKERS:
            for when in ("early", "later"):
                assert log.count(f"{who}, {when}\n") == starts
        assert log.count("mind the batch") == starts
    assert os.listdir(tmp_path) == ["model"]


def test_all_of_it_is_shown_on_demand(tmp_path):
    code = f"""
with Console() as console:
    console.keep_in("{tmp_path}", "train.log")
    all_speak("later")
    warn("mind the batch")
    raise OverflowError("too much")
"""
    out, said = run(code, "--verbosity=1", folder=tmp_path, code_of_exit=1)
    assert out == "ours, later\n" and not os.listdir(tmp_path)
    once = [*(f"{who}, later\n" for who in SPEAKERS), "mind the batch", ": too much"]
    assert {words: said.count(words) for words in once} == dict.fromkeys(once, 1)


def test_an_error_shows_the_end_of_the_log_and_names_it(tmp_path):
    code = f"""
with Console() as console:
    console.keep_in("{tmp_path}", "train.log")
    for i in range(50):
        logging.warning("line %d.", i)
    raise OverflowError("too much")
"""
    _, said = run(code, folder=tmp_path, code_of_exit=1)
    assert said.endswith("OverflowError: too much\n") and "line 29." not in said
    assert [said.count(f"line {i}.") for i in range(30, 50)] == [1] * 20
    assert f"The last lines of {tmp_path}/train.log:\n" in said
    log = (tmp_path / "train.log").read_text()
    assert "line 0." in log and log.endswith("OverflowError: too much\n")


STOPPED = """
import time
with Console():
    all_speak("early")
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""
IGNORED = """
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a script
with Console():
    os.kill(os.getpid(), signal.SIGINT)
"""
REFUSED = "with Console(): all_speak('early'); sys.exit('another batch, please')"


@pytest.mark.parametrize(
    ("code", "code_of_exit", "expected"),
    [(REFUSED, 1, "another batch, please\n"), (STOPPED, 130, "Stopped.\n"), (IGNORED, 0, "")],
    ids=["refused", "stopped", "ignored"],
)
def test_an_end_is_one_line_and_leaves_no_log(code, code_of_exit, expected, tmp_path):
    _, said = run(code, folder=tmp_path, code_of_exit=code_of_exit)
    assert said == expected and not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stop_is_one_line_though_c_is_at_work(tmp_path, name):
    code = f"""
import hashlib
with Console() as console:
    console.keep_in("{tmp_path}/model", "train.log")
    console.on_stop = lambda: "Stopped at step 7."
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # Python's handlers wait for its end
"""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + code], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    process.send_signal(getattr(signal, name))
    try:
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (said, process.returncode) == ("Stopped at step 7.\n", 130)


def test_an_abort_shows_the_line_of_python_that_called_it(tmp_path):
    _, said = run("with Console(): os.abort()", folder=tmp_path, code_of_exit=-6)
    assert "Aborted" in said and '"<string>", line' in said


def test_a_worker_that_is_not_the_chief_keeps_its_stderr(tmp_path):
    code = """
with Console() as console:
    all_speak("early")
    console.give_back(show=True)
    os.write(2, b"from now on as ever")
    raise OverflowError
"""
    _, said = run(code, folder=tmp_path, code_of_exit=1)
    assert all(said.count(f"{who}, early\n") == 1 for who in SPEAKERS)
    assert "from now on as ever" in said and "The last lines" not in said
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("ends_with", [None, ValueError, SystemExit, KeyboardInterrupt])
def test_all_is_as_it_was_before(ends_with, tmp_path):
    def state():
        stderr = os.fstat(2)
        filters = [*logging.get_absl_logger().filters]
        handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        return (stderr.st_dev, stderr.st_ino), filters, warnings.showwarning, handlers

    before, files = state(), len(os.listdir("/proc/self/fd"))
    try:
        with Console() as console:
            console.keep_in(str(tmp_path), "train.log")
            assert not [now for now, then in zip(state(), before, strict=True) if now == then]
            if ends_with:
                raise ends_with
    except BaseException as error:
        assert type(error) is ends_with
    assert state() == before and len(os.listdir("/proc/self/fd")) == files


FIRST, SECOND = ({"type": "worker", "index": index} for index in (0, "1"))
CHIEF = {"type": "chief", "index": 0}


@pytest.mark.parametrize(
    ("strategy", "task", "cluster", "expected"),
    [
        ("mirrored", SECOND, {}, True),
        ("multi_worker_mirrored", {}, {}, True),
        ("multi_worker_mirrored", FIRST, {}, True),
        ("multi_worker_mirrored", SECOND, {}, False),
        ("multi_worker_mirrored", CHIEF, {}, True),
        ("multi_worker_mirrored", FIRST, {"chief": ["a:1"]}, False),
    ],
    ids=["one machine", "no task", "the first", "the second", "a chief", "beside a chief"],
)
def test_who_is_the_chief(monkeypatch, strategy, task, cluster, expected):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    runtime = types.SimpleNamespace(distribution_strategy=strategy)
    assert batches.is_chief(types.SimpleNamespace(runtime=runtime)) == expected


# The line of progress.


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Run:
    """A run of 1,000 steps, five a loop, and evaluations after every tenth step."""

    def __init__(self, stream):
        self.console, self.at = Console(), 0
        self.console.stream = stream
        self.progress = ProgressBar(self.console, lambda: self.at, 1000, 64)

    def train(self):
        self.progress.begin()
        while self.at < 1000:
            self.at += 5
            rates = {"learning_rate": 0.125, "scaled_learning_rate": 0.25}  # which counts
            self.progress({"training_loss": 10 / self.at, **rates})
            if self.at % 10 == 0:
                self.progress.evaluated({"validation_loss": 0.5, "by_part": {"a": 1}})
        self.console.close_bar()


def test_without_a_terminal_there_are_ten_lines(capsys):
    Run(stream := io.StringIO()).train()
    lines = capsys.readouterr().out.splitlines()
    loops = [line for line in lines if line.startswith("step ")]
    evaluations = [line for line in lines if line.startswith("Evaluated ")]
    assert len(loops) == 10 and len(evaluations) == 100
    assert loops[-1].startswith("step 1000/1000, 00:00 left, loss 0.01, learning rate 0.25, ")
    assert loops[-1].endswith(" examples/s")
    assert evaluations[-1] == "Evaluated at step 1,000: validation_loss 0.5"
    assert not stream.getvalue()


def test_on_a_terminal_one_line_moves(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    Run(stream := Terminal()).train()
    assert all(line.startswith("Evaluated") for line in capsys.readouterr().out.splitlines())
    shown = stream.getvalue()
    assert "compiling the first step" in shown.split("\r")[1]
    assert shown.count("\n") == 1 and shown.endswith("\n")
    assert shown.count("\rstep ") >= 200 and max(map(len, shown.split("\r"))) == 70 + len("\n")


def test_examples_a_second_are_those_of_training_alone(capsys, monkeypatch):
    clock = iter([10, 100, 102])  # the first loop compiles; an evaluation ends at 100
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    run = Run(io.StringIO())
    run.progress.begin()
    run.at = 100
    run.progress({})
    assert "examples/s" not in capsys.readouterr().out
    run.progress.evaluated({})
    run.at = 200
    run.progress({})
    assert "3,200 examples/s" in capsys.readouterr().out
