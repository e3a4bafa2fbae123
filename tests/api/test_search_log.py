"""`directory=` of the finders: a search that was killed goes on, and no other one does."""

import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from api import test_find_batch as of_batch
from api import test_find_rate as of_rate
from support.frontends import FRONTENDS, every_frontend

from tf_lamb.find import search_log
from tf_lamb.find.data import Examples
from tf_lamb.find.trials import Trials

stopped = of_rate.stopped  # the fixture
SMALL = {"budget": 0.4}


def begun(ours, folder, make, monkeypatch):
    """A search of a model that `make` makes, which was interrupted at its first step."""

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trials, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            of_rate.search(ours, make(), directory=folder, **SMALL)


@every_frontend
def test_a_search_that_was_interrupted_goes_on_to_the_same_answer(
    frontend, stopped, monkeypatch, tmp_path
):  # fmt: skip
    """With batch normalization; in Keras 3 with dropout, too. It has other weights by then."""
    host, ours = FRONTENDS[frontend]

    def make():
        if frontend == "keras":
            return of_rate.model_of(host)
        model = host.Sequential([  # dropout of tf_keras draws from a global generator
            host.layers.Input((of_rate.WIDTH,)), host.layers.BatchNormalization(),
            host.layers.Dense(1, kernel_initializer="ones"),
        ])  # fmt: skip
        model.compile("sgd", "mse")
        return model

    whole = of_rate.search(ours, make(), **SMALL)
    with monkeypatch.context():
        stopped(40)
        with pytest.raises(KeyboardInterrupt):
            of_rate.search(ours, make(), directory=tmp_path, **SMALL)
        monkeypatch.undo()
    other = make()
    other.set_weights([w + 1 for w in other.get_weights()])
    before = of_rate.state_of(other)
    found = of_rate.search(ours, other, directory=tmp_path, **SMALL)
    of_rate.assert_equal(before, of_rate.state_of(other))
    assert (found.rate, found.trials, str(found)) == (whole.rate, whole.trials, str(whole))


def test_what_is_saved_is_not_made_again_and_both_finders_share_a_folder(
    monkeypatch, tmp_path, capsys
):  # fmt: skip
    """Neither the seconds of a step and of an evaluation, nor a short run."""
    host, ours = FRONTENDS["keras"]
    monkeypatch.setattr(search_log, "clock", lambda: 0.0)  # what was waited is another time
    of_batch.Machine(monkeypatch)
    how = {
        "baseline_epochs": 1, "large_batch_size": 64, "step_seconds": None, "directory": tmp_path
    }  # fmt: skip
    data = of_batch.quadratic(4000)
    of_rate.search(ours, of_rate.linear(host), directory=tmp_path, **SMALL)
    whole = of_batch.search(ours, of_batch.linear(host), data, **how)
    for name in ("step", "time_epochs"):
        monkeypatch.setattr(Trials, name, lambda *_: pytest.fail("it is made again"))
    capsys.readouterr()
    found = of_batch.search(ours, of_batch.linear(host), data, **how, verbose=True)
    assert (found.runs, found.target, str(found)) == (whole.runs, whole.target, str(whole))
    file = tmp_path / "find_batch.json"
    # The seconds of a step and of an evaluation, each run, and the early loss at each batch.
    count = 2 + len(found.runs) + 2
    assert f"\ngoes on after {count} results in {file}\n" in capsys.readouterr().out
    with pytest.raises(ValueError, match="with large_batch_size=64, and this one has 32: go on as"):
        of_batch.search(ours, of_batch.linear(host), data, **{**how, "large_batch_size": 32})


def with_dropout(host, momentum=0.0, loss="mse", dropout=0.1, width=4):
    model = host.Sequential([
        host.layers.Input((of_rate.WIDTH,)), host.layers.Dense(width),
        host.layers.Dropout(dropout), host.layers.Dense(1),
    ])  # fmt: skip
    model.compile(host.optimizers.SGD(0.01, momentum=momentum) if momentum else "sgd", loss)
    return model


END = "go on as that search began, or pass another directory."
# What differs -> the words of the error, the model, and how it is searched.
ANOTHER = {
    "batch_size": (f"with batch_size=32, and this one has 16: {END}", {}, {"batch_size": 16}),
    "warmup": (f"with warmup=0.05, and this one has 0.3: {END}", {}, {"warmup": 0.3}),
    "momentum": (f"with SGD.momentum=0.0, and this one has 0.9: {END}", {"momentum": 0.9}, {}),
    "dropout": (f"of another model, whose Dropout differs: {END}", {"dropout": 0.2}, {}),
    "width": (f"of another model, whose Dense differs: {END}", {"width": 5}, {}),
    "data": (f"on other data: {END}", {}, {"of": of_rate.data(noise=0.4)}),
    "loss": (
        "whose loss before any step is .*: pass the model and the loss of", {"loss": "mae"}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANOTHER)
def test_another_search_is_refused_in_one_sentence(case, monkeypatch, tmp_path):
    words, of_model, how = ANOTHER[case]
    host, ours = FRONTENDS["keras"]
    folder = tmp_path / "search"
    begun(ours, folder, lambda: with_dropout(host), monkeypatch)
    taken = []
    monkeypatch.setattr(Trials, "step", lambda *_: taken.append(1))
    with pytest.raises(ValueError, match=f"^{folder / 'find_rate.json'} is of a search {words}"):
        of_rate.search(ours, with_dropout(host, **of_model), directory=folder, **{**SMALL, **how})
    assert not taken


@pytest.mark.parametrize("nowhere", ["a file", "gs://bucket/search"])
def test_a_directory_that_is_no_folder_is_refused(nowhere, monkeypatch, tmp_path):
    host, ours = FRONTENDS["keras"]
    monkeypatch.setattr(Trials, "step", lambda *_: pytest.fail("a step was made"))
    if nowhere == "a file":
        (nowhere := tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is no folder of this machine: pass the path of one"):
        of_rate.search(ours, with_dropout(host), directory=nowhere)


@pytest.mark.parametrize("name, damage", [
    ("find_rate.json", lambda file: file.write_bytes(file.read_bytes()[:-9])),
    ("find_rate.json", lambda file: file.write_text("[]")),
    ("find_rate.json", lambda file: file.write_text('{"what": {}, "loss": 1, "made": [3]}')),
    ("find_rate.npz", lambda file: file.write_bytes(file.read_bytes()[:99])),
    ("find_rate.npz", lambda file: file.unlink()),
])  # fmt: skip
def test_a_file_that_cannot_be_read_is_told_of(name, damage, monkeypatch, tmp_path):
    host, ours = FRONTENDS["keras"]
    begun(ours, tmp_path, lambda: of_rate.linear(host), monkeypatch)
    damage(tmp_path / name)
    said = rf"^{tmp_path / name} cannot be read \(.*\): delete {tmp_path} to begin anew, or pass"
    with pytest.raises(ValueError, match=said):
        of_rate.search(ours, of_rate.linear(host), directory=tmp_path, **SMALL)


def test_arguments_of_numpy_are_saved_and_weights_in_bfloat16(tmp_path):
    host, ours = FRONTENDS["keras"]
    how = {
        "directory": tmp_path, "seed": np.int64(3), "warmup": np.float32(0.05),
        "micro_batch_size": np.int64(16), "baseline_batch_size": np.int64(16),
        "optimizers": [ours.LAMB(0.01, weight_decay=np.float32(0.1))],
    }  # fmt: skip
    answers = []
    for _ in range(2):
        half = host.layers.Dense(1, dtype="bfloat16")
        model = host.Sequential([host.layers.Input((of_rate.WIDTH,)), half])
        model.compile(ours.SGDP(0.01), "mse")
        answers.append(of_rate.search(ours, model, budget=0.7, **how))
    assert answers[0].trials == answers[1].trials
    how["optimizers"] = [ours.LAMB(0.01, weight_decay=np.float32(0.2))]
    with pytest.raises(ValueError, match="with LAMB.weight_decay=0.1"):
        of_rate.search(ours, model, budget=0.7, **how)


@pytest.mark.once
def test_other_data_have_another_checksum():
    """Held-out examples, or those that are trained on first; strings as what they say."""
    (x, y), held_out = of_rate.data(), of_rate.data(noise=0.4)
    batches = of_rate.batched()
    assert Examples((x, y)).checksum() == Examples((x.copy(), y)).checksum()
    words = np.char.add("word ", np.arange(len(x)).astype(str)).astype(object)
    known = {Examples((x, y)).checksum()}
    for other in (
        Examples((x + 1, y)), Examples((x, -y)), Examples((x, y), held_out), Examples(batches),
        Examples((x[:, 0], y)), Examples((words, y)), Examples((words[::-1], y)),
        Examples((x, -y), held_out), Examples(batches[::-1], held_out),
    ):  # fmt: skip
        assert other.checksum() not in known
        known.add(other.checksum())


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from api import test_find_batch as of_batch, test_find_rate as of_rate
from support.frontends import FRONTENDS
from tf_lamb.find.trials import Trials

host, ours = FRONTENDS["keras"]
step, left = Trials.step, [float("{steps}")]

def dying(self, rate):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, rate)

Trials.step = dying
if {finder!r} == "find_rate":
    model = of_rate.model_of(host)
else:
    model = of_batch.linear(host)
model.set_weights([w + {life} for w in model.get_weights()])
if {finder!r} == "find_rate":
    found = of_rate.search(ours, model, directory={folder!r})
    answer = found.rate, found.trials, str(found)
else:
    found = of_batch.search(
        ours, model, of_batch.quadratic(4000), baseline_epochs=1, large_batch_size=64,
        directory={folder!r},
    )
    lines = str(found).splitlines()  # what was waited is another time
    answer = found.target, found.runs, [each for each in lines if "the search took" not in each]
print("ANSWER", repr(answer))
"""


@pytest.mark.slow
@pytest.mark.parametrize("finder, lives", [
    ("find_rate", (30, 100, 150)), ("find_batch", (30, 30, 30))
])  # fmt: skip
def test_a_search_that_is_killed_three_times_ends_with_the_answer_of_one_that_was_not(
    finder, lives, tmp_path
):  # fmt: skip
    """Each life is a process, which begins with weights of its own; bit for bit."""
    tests = os.path.dirname(os.path.dirname(__file__))

    def lived(life, steps, folder):
        code = KILLED.format(
            tests=tests, steps=steps, finder=finder, life=life, folder=folder and str(folder)
        )
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    for life, steps in enumerate(lives):
        assert lived(life, steps, tmp_path).returncode == -signal.SIGKILL
    resumed, whole = lived(3, math.inf, tmp_path), lived(0, math.inf, None)
    assert "ANSWER" in whole.stdout, whole.stderr
    assert resumed.stdout.partition("ANSWER")[2] == whole.stdout.partition("ANSWER")[2]
