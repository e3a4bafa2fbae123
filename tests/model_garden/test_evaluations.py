"""Every evaluation that is due is made, once, of the weights of its step."""

import json

import pytest

pytest.importorskip("official")

import orbit
import tensorflow as tf
from support import garden
from support.frontends import uncompiled
from support.garden import assert_same_bits, build, tiny

from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.folders import model_dirs, report
from tf_lamb.model_garden.running import controllers

STEPS, EVERY = 10, 4  # due at 4, at 8 and at the end


class Killed(BaseException):
    """What no handler catches, as a kill."""


def run(records, folder, killed=None, at=None, mode="train_and_eval", **more):
    """A run that is killed in a loop of training or in an evaluation, at a step."""
    trainer = {
        "train_steps": STEPS, "steps_per_loop": 1, "summary_interval": 1, "checkpoint_interval": 2,
        "validation_interval": EVERY, "validation_steps": 1,
        "best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "validation_loss",
        "continuous_eval_timeout": 1,
    }  # fmt: skip
    settings = tiny(records, **trainer)
    settings["task"]["train_data"] |= {"resume_in_order": True, "shuffle_buffer_size": 100}
    settings["task"]["validation_data"] |= {"is_training": False}

    def die(_):
        if int(tf.summary.experimental.get_step()) == at:
            raise Killed

    actions = {f"{killed}_actions": [die]} if killed else {}
    return garden.run(build(settings), folder, mode, **actions, **more)


def figures(folder):
    found = report.read_scalars(str(folder / "validation"))
    found.pop("steps_per_second")
    return found


def weights(folder):
    found = garden.checkpoint(folder).items()
    return {name: value.tobytes() for name, value in found if not name.startswith("optimizer")}


@pytest.fixture(scope="module")
def unbroken(records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    with uncompiled():
        run(records, folder)
    return folder


@pytest.mark.slow
def test_killed_and_resumed_it_has_the_evaluations_of_an_unbroken_run(records, unbroken, tmp_path):
    assert list(figures(unbroken)["validation_loss"]) == [4, 8, 10]
    # The first is killed with its best checkpoint saved and nothing noted; the second between two
    # evaluations; the third with all its steps taken.
    for killed, at in (("eval", 4), ("train", 7), ("eval", 10)):
        with uncompiled(), pytest.raises(Killed):
            run(records, tmp_path, killed, at)
    with uncompiled():
        run(records, tmp_path)
    assert figures(tmp_path) == figures(unbroken)
    assert_same_bits(unbroken, tmp_path)
    best = "best/info.json"
    assert json.loads((tmp_path / best).read_text()) == json.loads((unbroken / best).read_text())
    expected, got = weights(unbroken / "best"), weights(tmp_path / "best")
    assert expected == got and len(got) > 20


class Steps(orbit.AbstractTrainer, orbit.AbstractEvaluator):
    """Counts steps, and notes at which of them it is evaluated."""

    def __init__(self, at):
        self.step, self.evaluated = tf.Variable(at, dtype=tf.int64), []

    def train(self, num_steps):
        self.step.assign_add(tf.cast(num_steps, tf.int64))

    def evaluate(self, num_steps):
        self.evaluated.append(int(self.step))


@pytest.mark.parametrize(
    ("at", "last", "due", "expected"),
    [
        (0, 0, 4, [4, 8, 10]),
        (6, 4, 4, [8, 10]),
        (8, 4, 4, [8, 10]),  # it was killed in the evaluation
        (8, 8, 4, [10]),
        (6, 8, 4, [8, 10]),  # an evaluation of weights that are lost
        (10, 8, 4, [10]), (10, 10, 4, []), (0, 0, None, [10]), (6, 0, 20, [10]),
    ],
)  # fmt: skip
def test_what_is_due_and_was_not_made_is_made(tmp_path, at, last, due, expected):
    steps = Steps(at)
    controller = controllers.Controller(
        global_step=steps.step, trainer=steps, evaluator=steps, steps_per_loop=1
    )
    controller.model_dir, controller.writes = str(tmp_path), True
    if last:
        model_dirs.write_evaluated(str(tmp_path), last)
    controller.checkpoint_manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(), str(tmp_path), max_to_keep=1
    )
    controller.train_and_evaluate(10, eval_interval=due)
    assert steps.evaluated == expected and model_dirs.read_evaluated(str(tmp_path)) == 10


@pytest.fixture
def following(tmp_path):
    """A controller that follows a folder, and what saves a checkpoint of a step there."""
    steps = Steps(0)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(global_step=steps.step), str(tmp_path), max_to_keep=None
    )
    controller = controllers.Controller(
        global_step=steps.step, evaluator=steps, checkpoint_manager=manager,
        eval_summary_dir=str(tmp_path / "validation"),
    )  # fmt: skip
    manager.restore = lambda path: manager.checkpoint.read(path).expect_partial()

    def save(step):
        steps.step.assign(step)
        manager.save(checkpoint_number=step)

    return controller, steps, save


def test_a_continuous_evaluation_ends_with_training(following, monkeypatch):
    """At its last checkpoint, though one has come while another was evaluated."""
    controller, steps, save = following
    monkeypatch.setattr(controllers.time, "sleep", lambda _: pytest.fail("it waits"))
    controller.is_over = lambda: steps.evaluated != [4] or bool(save(6)) or True
    save(4)
    controller.evaluate_continuously(timeout=3600, timeout_fn=lambda: False)
    assert steps.evaluated == [4, 6]


@pytest.mark.parametrize("saved", [True, False])
def test_a_continuous_evaluation_says_why_it_waits_no_more(following, monkeypatch, saved):
    controller, steps, save = following
    controller.is_over = lambda: False
    clock = iter(range(0, 10_000, 2))
    monkeypatch.setattr(controllers.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(controllers.time, "sleep", lambda _: None)
    if saved:
        save(4)
    last = "behind ckpt-4" if saved else "at all"
    with pytest.raises(UserError, match=f"no checkpoint {last} has come within .*=60 sec") as error:
        controller.evaluate_continuously(timeout=60, timeout_fn=lambda: False)
    assert steps.evaluated == [4] * saved and "\n" not in str(error.value)
    # Orbit's own users may say that it is over.
    controller.evaluate_continuously(timeout=60, timeout_fn=lambda: True)
