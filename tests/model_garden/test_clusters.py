"""A TF_CONFIG that no run can use is one line, before TensorFlow reads it."""

import json

import pytest

pytest.importorskip("official")

from support.garden import EXPERIMENT, build, tiny

from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common import clusters
from tf_lamb.model_garden.common.errors import UserError

TWO = {"worker": ["one:1", "two:1"]}
FIRST = {"type": "worker", "index": 0}


def config(cluster, task=FIRST):
    return json.dumps({"cluster": cluster} | ({"task": task} if task is not None else {}))


WRONG = {
    "quotes lost": ("{cluster: {worker: [one:1]}}", r"which is no JSON \(.*single quotes"),
    "no object": ('["one:1"]', "which is no JSON object"),
    "cluster": (config(["one:1"]), "whose cluster is no JSON object"),
    "addresses": (config({"worker": "one:1"}), "whose worker is no list of addresses"),
    "index": (config(TWO, FIRST | {"index": 5}), "worker 5, and its cluster has 2 .* from 0 to 1"),
    "below": (config(TWO, FIRST | {"index": -1}), "worker -1, and its cluster has 2"),
    "no index": (config(TWO, {"type": "worker"}), "does not say which of the processes"),
    "no task": (config(TWO, None), "does not say which of the processes this one is"),
    "type": (config(TWO, FIRST | {"type": "wroker"}),
             "of the type 'wroker', which its cluster has not. Did you mean worker?"),
    "type in brackets": (config(TWO, {"type": ["worker"], "index": 0}), "has the type .*worker"),
    "nobody": (config({"worker": []}), "worker 0, and its cluster has none. Write the address"),
    "job": (config({"wroker": ["one:1"]}), "a cluster of 'wroker'. Did you mean worker?"),
    "ps": (config(TWO | {"ps": ["three:1"]}),
           "of the type 'ps', which keeps weights as a parameter server"),
    "evaluator": (config(TWO, {"type": "evaluator", "index": 0}),
                  "of the type 'evaluator', which does not train. .* --mode=continuous_eval"),
    "two chiefs": (config(TWO | {"chief": ["a:1", "b:1"]}), "more than one chief"),
    "one address": (config({"worker": ["one:1", "one:1"]}), "gives one:1 to two processes"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_place_in_a_cluster_is_one_line_before_anything_is_written(
    records, tmp_path, monkeypatch, name
):
    text, words = WRONG[name]
    monkeypatch.setenv("TF_CONFIG", text)
    params = build(tiny(records))
    params.runtime.distribution_strategy = "multi_worker_mirrored"
    folder = tmp_path / "model"
    with pytest.raises(UserError, match=f"TF_CONFIG .*{words}") as error:
        check_run(params, "train", str(folder), EXPERIMENT)
    assert "\n" not in str(error.value) and not folder.exists()


@pytest.mark.parametrize("task", [None, {"type": "worker"}, {"type": 3, "index": 0}], ids=str)
def test_a_task_that_is_wrong_is_not_told_as_a_cluster_that_is(monkeypatch, task):
    monkeypatch.setenv("TF_CONFIG", config(TWO, task))
    with pytest.raises(UserError, match="Write") as error:
        clusters.check()
    assert "no cluster" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        None, "", "{}", json.dumps({"task": FIRST}), config(TWO), config(TWO, FIRST | {"index": 1}),
        config(TWO, FIRST | {"index": "1"}),
        config(TWO | {"chief": ["three:1"]}, {"type": "chief", "index": 0}),
    ],
)  # fmt: skip
def test_what_is_one_is_none_of_it(monkeypatch, text):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    clusters.check()
