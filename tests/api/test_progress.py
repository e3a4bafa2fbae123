"""What somebody sees who watches a search or a staged training, and that nobody has to."""

import io
import re
import sys

import keras
import numpy as np
import pytest
from api import test_find_batch as of_batch
from api import test_find_rate as of_rate
from api import test_fit_stages as of_stages
from support.frontends import FRONTENDS, every_frontend

from tf_lamb.api.progress import Progress
from tf_lamb.find import timing
from tf_lamb.find.trials import Trials


@pytest.fixture
def seen(monkeypatch):
    """What is printed where somebody watches: in "terminal", "notebook" or "file"."""

    def watched(place):
        printed = io.StringIO()
        printed.isatty = lambda: place == "terminal"
        monkeypatch.setattr(sys, "stdout", printed)
        monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
        if place == "notebook":
            monkeypatch.setitem(sys.modules, "ipykernel", None)
        return printed

    return watched


def bar_of(*given, **more):
    return Progress(keras.Sequential(), *given, **more)


@pytest.mark.once
@pytest.mark.parametrize("place, before", [("terminal", "\r\x1b[K"), ("notebook", "\r")])
def test_a_line_takes_the_place_of_the_bar_which_ends_where_the_work_does(place, before, seen):
    printed = seen(place)
    with bar_of(100, True) as progress:
        progress.say("before")
        progress.add(60)
        progress.say("after 60")
        progress.add(120)  # more than there is: not the end
        assert "100/100" not in printed.getvalue()
    lines = printed.getvalue()
    assert lines.startswith("before\n")
    assert re.search(r"60/100.*\n?" + re.escape(f"{before}after 60"), lines)
    covers = re.search(r"after 60( *)\n", lines).group(1)
    assert place == "terminal" or len(covers) > 100  # what is left of the bar
    assert re.search(r"100/100.*s/example\n$", lines)


@pytest.mark.once
@pytest.mark.parametrize(
    ("place", "verbose", "wanted"),
    [("file", True, "line\n"), ("terminal", False, "")],
    ids=["a file", "not verbose"],
)
def test_a_file_gets_the_lines_alone_and_what_is_not_verbose_nothing(place, verbose, wanted, seen):
    printed = seen(place)
    with bar_of(100, verbose) as progress:
        progress.add(60)
        progress.say("line")
    assert printed.getvalue() == wanted


@pytest.mark.once
def test_a_notebook_is_not_filled_with_thousands_of_bars(seen, monkeypatch):
    """One in a hundred parts, and one in a second, at most; a saved cell keeps all of them."""
    now = [0.0]

    def later():
        now[0] += 2.0  # so that no bar is left out for its time
        return now[0]

    monkeypatch.setattr("time.time", later)
    printed = seen("notebook")
    with bar_of(10**6, True) as progress:
        for _ in range(10**4):
            progress.add(100)
    assert 90 <= printed.getvalue().count("\r") <= 110
    monkeypatch.setattr("time.time", lambda: 0.0)
    printed = seen("notebook")
    with bar_of(10**6, True) as progress:
        for _ in range(10**4):
            progress.add(100)
    assert printed.getvalue().count("\r") == 1


@pytest.mark.once
def test_a_bar_goes_on_where_more_is_done_than_was_thought_and_ends_with_what_was_done(seen):
    printed = seen("terminal")
    with bar_of(500, True, expected_units=100) as progress:
        for _ in range(6):
            progress._bar._last_update = 0.0
            progress.add(50)
    targets = [int(each) for each in re.findall(r"\d+/(\d+)", printed.getvalue())]
    *before, end = targets
    assert before[0] == 100 and before[-1] == 400 and sorted(before) == before and end == 300


@pytest.mark.once
def test_an_error_is_printed_below_the_bar(seen):
    printed = seen("terminal")
    with pytest.raises(KeyError), bar_of(100, True) as progress:
        progress.add(60)
        raise KeyError
    assert printed.getvalue().endswith("\n") and "100/100" not in printed.getvalue()


@pytest.mark.once
def test_without_interactive_logging_keras_has_no_bar(seen):
    printed = seen("terminal")
    keras.utils.disable_interactive_logging()
    try:
        with bar_of(100, True) as progress:
            progress.add(60)
            progress.say("line")
    finally:
        keras.utils.enable_interactive_logging()
    assert printed.getvalue() == "line\n"


class Gone(io.StringIO):
    """A pipe that nobody reads any longer."""

    def isatty(self):
        return True

    def write(self, text):
        raise BrokenPipeError


@pytest.mark.once
@pytest.mark.parametrize("place", ["none", "closed", "closed later", "a pipe"])
def test_without_a_standard_output_all_goes_on(place, monkeypatch, seen):
    """As in a service, or below `pythonw`."""
    _, ours = FRONTENDS["keras"]
    output = Gone() if place == "a pipe" else io.StringIO()
    if place == "closed":
        output.close()
    if place == "closed later":
        output = seen("terminal")
    monkeypatch.setattr(sys, "stdout", None if place == "none" else output)
    with bar_of(100, True) as progress:
        progress.add(60)
        if place == "closed later":
            output.close()
        progress.say("line")
        progress.add(39)
    if place != "a pipe":  # Keras's own bar of fit cannot write there
        of_stages.fit("keras", model := of_stages.model_of("keras"), verbose="auto")
        assert int(model.optimizer.iterations) == 11


@every_frontend
def test_a_search_tells_its_price_before_and_shows_a_bar(frontend, monkeypatch, seen):
    """Losses are planted: they fall with the examples since the start."""
    host, ours = FRONTENDS[frontend]
    model, done, start = of_batch.linear(host), [], Trials.start_run

    def train_on_batch(x, y, return_dict):
        done.append(len(x))
        return {"loss": 1.0}

    def test_on_batch(x, y, return_dict):
        return {"loss": 1 / (100 + sum(done)) + 1e-9 * y[0, 0]}

    monkeypatch.setattr(model, "train_on_batch", train_on_batch)
    monkeypatch.setattr(model, "test_on_batch", test_on_batch)
    monkeypatch.setattr(timing, "time_evaluation_within_run", lambda _: (0.010, 3.0))
    monkeypatch.setattr(Trials, "start_run", lambda self, *of: (done.clear(), start(self, *of)))

    def printed(place, **more):
        output = seen(place)
        how = {"baseline_epochs": 1, "large_batch_size": 64, "verbose": True, **more}
        of_batch.search(ours, model, of_batch.quadratic(4000), **how)
        return output.getvalue()

    assert printed("terminal", verbose=0) == ""
    before, after = printed("file").split("held out")
    # 4,000 examples, half of them in 26 ms for 16, the others in 74 ms for 64; ten runs with 21
    # evaluations of 10 ms each, and two compilations of 3 s.
    assert "of the baseline, 13.7 s to " in before and "example" not in after
    shown = printed("terminal")
    assert re.search(r"\d+/\d+.*s/example", shown) and "\x1b[Kbatch 64, rate" in shown


@pytest.mark.once
def test_the_timing_of_steps_has_a_bar(monkeypatch, seen):
    host, ours = FRONTENDS["keras"]
    of_batch.Machine(monkeypatch)
    printed = seen("terminal")
    of_batch.measured(ours, of_batch.linear(host, ours.SGDP(0.05)), verbose=True)
    assert printed.getvalue().startswith(
        "find_batch: epochs of fit on arrays are timed at micro-batches of 4, 16, 64"
    )
    assert re.search(r"\d+/\d+.*s/timing\s*$", printed.getvalue())


@every_frontend
def test_a_staged_training_tells_which_stage_begins(frontend, seen):
    """Before the epoch in which it does, of which the last here trains none of the second."""
    printed = seen("file")
    of_stages.fit(frontend, of_stages.model_of(frontend), verbose=2)
    told = re.findall(r"Stage.*|Epoch \d", printed.getvalue())
    assert told == [
        "Stage 1 of 3, batch 4: updates 1 to 5 of 11",
        "Stage 2 of 3, batch 8: updates 6 to 8 of 11", "Epoch 1",
        "Stage 3 of 3, batch 20: updates 9 to 11 of 11", "Epoch 2", "Epoch 3", "Epoch 4",
    ]  # fmt: skip
    printed = seen("terminal")
    of_stages.fit(frontend, of_stages.model_of(frontend), verbose=0)
    assert printed.getvalue() == ""


@pytest.mark.once
def test_a_rate_search_shows_how_far_it_is_with_what_was_saved(seen, tmp_path):
    host, ours = FRONTENDS["keras"]
    how = {"epochs": 16, "budget": 0.3, "directory": tmp_path}
    counts = []
    for _ in range(2):
        printed = seen("terminal")
        ours.find_rate(of_rate.linear(host), of_rate.data(), of_rate.BATCH, **how)
        counts.append(np.max([int(n) for n in re.findall(r"(\d+)/\d+", printed.getvalue())]))
    assert counts[0] == counts[1] and "goes on after" in printed.getvalue()
