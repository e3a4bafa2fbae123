"""The README's Python runs, and what it shows was printed."""

import ast
import inspect
import re
import warnings

from support.pages import ROOT, blocks

import tf_lamb

README = ROOT / "README.md"


def texts(language):
    return [text for _, text in blocks(README, language)]


def test_the_snippet_trains_as_it_stands(capsys):
    names = {}
    _, code = texts("python")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        exec(code, names)
    assert "Muon at batch 2,048" in capsys.readouterr().out
    assert type(names["model"].optimizer) is tf_lamb.Muon
    assert names["model"].optimizer.iterations == names["recipe"].train_steps == 80


def test_what_it_says_of_the_finder_can_be_typed():
    """The call has the names of the arguments."""
    code, _ = texts("python")
    (call,) = re.findall(r"print\((tf_lamb\.find_batch\(.+\))\)", code)
    said = {each.arg for each in ast.parse(call).body[0].value.keywords}
    assert said == {"baseline_batch_size", "baseline_epochs"}
    assert said <= set(inspect.signature(tf_lamb.find_batch).parameters)


def test_what_make_train_shows_is_its_output():
    (shown,) = [text for text in texts("") if text.startswith("step 500")]
    output = (ROOT / "benchmarks" / "logs" / "make_train.log").read_text()
    assert all(part.strip() in output for part in shown.split("..."))
    assert len(output.splitlines()) <= 40
