"""Loops that sum gradients over replicas and clip the sum, which Keras 3's optimizers do inside."""

import textwrap

import numpy as np
import pytest

from tf_lamb.adopt.script import adopt

pytestmark = pytest.mark.once

HEAD = "import tensorflow as tf\nimport tensorflow_addons as tfa\n"
MAKES = "lamb = tfa.optimizers.LAMB(0.01)\n"
SUM = "g = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, g)"
GLOBAL = "g, _ = tf.clip_by_global_norm(g, 0.5)"
UPDATE = "lamb.apply_gradients(zip(g, v), experimental_aggregate_gradients=False)"


def loop(*lines, makes=MAKES):
    body = textwrap.indent("\n".join(lines), "    ")
    return f"{HEAD}{makes}def step(g, v):\n{body}\n"


def note(code):
    """The note on the update, which is in the last line."""
    (update_note,) = [note for note in adopt(code).notes if note.line == code.count("\n")]
    return str(update_note)


@pytest.mark.parametrize(
    "clip, argument",
    [
        ("", ""),
        (GLOBAL, ", global_clipnorm=0.5"),
        ("g = [tf.clip_by_norm(x, 2) for x in g]", ", clipnorm=2"),
        ("g = [tf.clip_by_value(x, -0.1, 0.1) for x in g]", ", clipvalue=0.1"),
    ],
    ids=["unclipped", "global", "of one", "value"],
)
def test_a_sum_and_its_clipping_move_into_the_optimizer(clip, argument):
    adopted = adopt(loop(SUM, *[clip] * bool(clip), UPDATE))
    assert f"lamb = tf_lamb.LAMB(0.01{argument})\n" in adopted.code
    assert adopted.code.endswith("def step(g, v):\n    lamb.apply_gradients(zip(g, v))\n")
    assert "your sum in line 5" in str(adopted.notes[-1]) and not adopted.notes[-1].is_left


def test_the_update_takes_the_gradients_before_the_sum():
    total = SUM.replace("g =", "total =")
    clip = GLOBAL.replace("g, _", "clipped, _").replace("(g,", "(total,")
    code = adopt(loop(total, clip, UPDATE.replace("zip(g", "zip(clipped"))).code
    assert code.endswith("def step(g, v):\n    lamb.apply_gradients(zip(g, v))\n")


def test_the_clipping_gets_a_line_where_the_arguments_have():
    code = adopt(
        loop(SUM, GLOBAL, UPDATE, makes="lamb = tfa.optimizers.LAMB(\n    0.01,\n)\n")
    ).code
    assert "lamb = tf_lamb.LAMB(\n    0.01,\n    global_clipnorm=0.5,\n)\n" in code


@pytest.mark.parametrize(
    "lines, clipping",
    [
        ((SUM, "g, _ = tf.clip_by_global_norm(g, limit)", UPDATE), "global_clipnorm=limit"),
        ((SUM, "g, norm = tf.clip_by_global_norm(g, 1.0)", "print(norm)", UPDATE),
         "global_clipnorm=1.0"),
        ((SUM, "print(g)", GLOBAL, UPDATE), "global_clipnorm=0.5"),
        (("if many:", f"    {SUM}", GLOBAL, UPDATE), "global_clipnorm=0.5"),
        ((SUM, "g = [tf.clip_by_value(x, -1, 2) for x in g]", UPDATE), "clipvalue=2"),
        ((SUM, GLOBAL, GLOBAL.replace("0.5", "2"), UPDATE), "global_clipnorm=2"),
    ],
    ids=["no number", "the norm", "another use", "in if", "not symmetric", "twice"],
)  # fmt: skip
def test_a_clipping_of_the_sum_that_is_not_certain_is_named(lines, clipping):
    code = loop(*lines)
    text = note(code)
    assert code.splitlines()[-1] in adopt(code).code
    assert "leave it out, and your sum over the replicas, too" in text
    assert f"pass {clipping} to the optimizer" in text and "tf.clip_by_" in text


def test_a_mean_over_the_replicas_is_not_taken_for_a_sum():
    text = note(loop(SUM.replace("SUM", "MEAN"), GLOBAL, UPDATE))
    assert "line 5 takes the mean over the replicas" in text
    assert "divide the loss by strategy.num_replicas_in_sync" in text


@pytest.mark.parametrize(
    "makes",
    [
        "lamb = tfa.optimizers.LAMB(0.01, clipnorm=1.0)\n",
        "lamb = tfa.optimizers.LAMB(0.01, **more)\n",
        MAKES + "other = tfa.optimizers.LAMB()\n",
        MAKES + "lamb.apply_gradients(others)\n",
    ],
    ids=["clips already", "may clip already", "two", "another update"],
)
def test_a_clipping_of_other_updates_is_not_written(makes):
    code = loop(SUM, GLOBAL, UPDATE, makes=makes)
    number = code.splitlines().index("    " + GLOBAL) + 1
    assert GLOBAL in adopt(code).code
    assert f"Instead of tf.clip_by_global_norm in line {number}, which clips your sum" in note(code)


def test_a_clipping_before_the_sum_stays():
    code = adopt(loop(GLOBAL, SUM, UPDATE)).code
    assert GLOBAL in code and SUM not in code and "global_clipnorm" not in code
    assert "clip" not in note(loop(GLOBAL, "g = reduced(g)", SUM, "print(g)", UPDATE))


REPLICAS = """
strategy = tf.distribute.MirroredStrategy(
    ["cpu:0", "cpu:1"], tf.distribute.ReductionToOneDevice()
)
with strategy.scope():
    weight = tf.Variable([[1.0, -2.0]])
    lamb = tf_lamb.keras.LAMB(0.01ARGUMENT)
    lamb.build([weight])
def step():
    g, v = [weight * 3.0], [weight]
    SUM
    lamb.apply_gradients(zip(g, v))
for _ in range(3):
    tf.function(lambda: strategy.run(step))()
result = strategy.experimental_local_results(weight)[0].numpy()
"""


def test_what_is_said_of_a_kept_sum_is_so():
    """Divided by the replicas, a sum that was clipped makes the steps of the optimizer's own."""
    divided = "g = [x / strategy.num_replicas_in_sync for x in g]"
    results = []
    for argument, lines in [(", global_clipnorm=0.5", ["pass"]), ("", [SUM, GLOBAL, divided])]:
        code = REPLICAS.replace("ARGUMENT", argument).replace("SUM", "\n    ".join(lines), 1)
        names: dict = {}
        exec("import tensorflow as tf\nimport tf_lamb.keras\n" + code, names)
        results.append(names["result"])
    np.testing.assert_allclose(*results, rtol=1e-6)
    assert np.abs(results[0] - [[1.0, -2.0]]).max() > 0.01
