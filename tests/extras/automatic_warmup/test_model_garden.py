"""AutoWarmup in Model Garden: its trainer, its runner, its checkpoints."""

import json

import numpy as np
import pytest

pytest.importorskip("official")

import tensorflow as tf
from official.core import task_factory, train_lib
from support.clusters import mirrored
from support.garden import build, optimizer, run, tiny, trainer_of

from tf_lamb import model_garden
from tf_lamb.model_garden.checks.experiment import check_optimizer, check_run
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments import schedule_configs
from tf_lamb.model_garden.running import runner
from tf_lamb_extras.automatic_warmup import gaussian_process
from tf_lamb_extras.automatic_warmup.decisions import AutoWUState
from tf_lamb_extras.automatic_warmup.model_garden import KEY, AutoWarmup

STEPS = 24


def params_of(records, train_steps=STEPS, **fields):
    told = {"total_steps": STEPS, "decide_every": 2, "min_learning_rate": 1e-3, **fields}
    params = build(
        tiny(
            records, train_steps=train_steps, steps_per_loop=2, checkpoint_interval=2,
            validation_interval=100, summary_interval=2,
            optimizer_config={
                "learning_rate": {"type": KEY, KEY: told}, "warmup": {"type": None},
            },
        )
    )  # fmt: skip
    params.task.train_data.resume_in_order = True
    return params


@pytest.fixture
def finds_it_at_8(monkeypatch):
    """The process is certain from step 4 on; its posterior is lowest at the end of an epoch."""

    def judge(x, y, tests):
        sure = gaussian_process.MinimumTest(0.99 if len(x) >= 2 else 0.1, 0.25)
        return [sure] * tests

    monkeypatch.setattr(AutoWUState.__init__, "__defaults__", (judge,))


def state(folder):
    return json.loads((folder / "auto_warmup.json").read_text())


PEAK = 1e-3 * 1000 ** (2 / 12)  # of the first: no epoch that ends lower has a lower rate


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_was_not(records, tmp_path, finds_it_at_8, capsys):
    whole = run(params_of(records), tmp_path / "whole", "train")
    assert "after 8 of 24 steps" in capsys.readouterr().out
    kept = state(tmp_path / "whole")
    assert kept["switch"] == pytest.approx([8, PEAK])
    assert [at for at, _ in kept["points"]] == [0.5, 2.5, 4.5, 6.5]
    assert (tmp_path / "whole" / "auto_warmup.png").stat().st_size > 10_000

    # The step itself reads the rate: what it is after the last one.
    schedule = schedule_configs.steered_rate(whole.trainer.optimizer)
    for step, rate in ((0, 1e-3), (6, 1e-3 * 1000**0.5), (16, PEAK / 2), (24, 0.0)):
        assert float(schedule(tf.constant(step))) == pytest.approx(rate, rel=1e-5, abs=1e-8)

    run(params_of(records, train_steps=6), tmp_path / "killed", "train")
    run(params_of(records, train_steps=14), tmp_path / "killed", "train")
    again = run(params_of(records), tmp_path / "killed", "train")
    assert state(tmp_path / "killed") == kept
    for one, other in zip(
        whole.trainer.model.get_weights(), again.trainer.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)

    (tmp_path / "killed" / "auto_warmup.json").unlink()
    with pytest.raises(UserError, match=r"goes on at step 24, but .*auto_warmup.json"):
        run(params_of(records), tmp_path / "killed", "train")


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON"])
def test_a_state_that_cannot_be_restored_is_an_error_of_ours(records, tmp_path, eager, text):
    trained = trainer_of(params_of(records), mirrored(1)).optimizer
    trained.iterations.assign(4)
    (tmp_path / "auto_warmup.json").write_text(text)
    with pytest.raises(UserError, match="goes on at step 4, but .*auto_warmup.json.* cannot be re"):
        AutoWarmup(trained, str(tmp_path)).resume()


@pytest.mark.parametrize(
    "kind", [tf.errors.NotFoundError, tf.errors.PermissionDeniedError, tf.errors.UnavailableError]
)
def test_a_state_file_that_cannot_be_opened_is_an_error_of_ours(
    records, tmp_path, eager, monkeypatch, kind
):
    def refuse(*arguments):
        raise kind(None, None, "it cannot be opened")

    trained = trainer_of(params_of(records), mirrored(1)).optimizer
    trained.iterations.assign(4)
    monkeypatch.setattr(tf.io.gfile, "GFile", refuse)
    with pytest.raises(UserError, match=f"at step 4, .* cannot be read: {kind.__name__}"):
        AutoWarmup(trained, str(tmp_path)).resume()


def test_model_gardens_mains_watch_the_loss_too(
    records, eager, tmp_path, finds_it_at_8, monkeypatch
):
    """They import what registers, and then have `run_experiment` choose a runner."""
    monkeypatch.setattr(train_lib, "OrbitExperimentRunner", runner.Runner.__base__)
    model_garden.register()
    params, folder = params_of(records, train_steps=10), str(tmp_path)
    params.trainer.optimizer_config.optimizer.tf_lamb.trust_ratios_every = 2
    strategy = mirrored(1)
    with strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=folder)
    train_lib.run_experiment(strategy, task, "train", params, folder)
    assert state(tmp_path)["switch"] == pytest.approx([8, PEAK])
    assert list((tmp_path / "trust_ratios").iterdir())


def test_a_loop_in_which_nobody_watches_the_loss_is_refused(records, eager):
    trainer = trainer_of(params_of(records), mirrored(1))
    with (
        trainer.strategy.scope(),
        pytest.raises(UserError, match="nobody watches the loss") as error,
    ):
        trainer.train(tf.constant(2))
    assert "\n" not in str(error.value)
    assert trainer.global_step.numpy() == 0


@pytest.mark.parametrize("back_at", [4, 2])
def test_a_loop_that_recovery_took_back_is_as_if_it_never_was(records, eager, tmp_path, back_at):
    """The last loop has a checkpoint, or the one before."""
    trainer = trainer_of(params_of(records, decide_every=100), mirrored(1))

    def watch(loops):
        trainer.optimizer.iterations.assign(0)
        action = AutoWarmup(trainer.optimizer, str(tmp_path))
        action.resume()
        for step, loss in loops:
            trainer.optimizer.iterations.assign(step)
            action({"training_loss": loss})
        return action.warmup.state()

    before, after = [(2, 1.0), (4, 0.9)][: back_at // 2], [(back_at + 2, 0.8)]
    assert watch([(2, 1.0), (4, 0.9), (back_at, 1e9), *after]) == watch([*before, *after])


@pytest.mark.slow
def test_replicas_share_the_rate_and_the_loss(records, eager):
    seen = {}
    for replicas in (1, 2):
        params = params_of(records)
        params.task.train_data.shuffle_buffer_size = 1
        trainer = trainer_of(params, mirrored(replicas))
        AutoWarmup(trainer.optimizer, "nowhere")  # a loop of one's own makes it
        with trainer.strategy.scope():
            logs = trainer.train(tf.constant(4))
        seen[replicas] = float(logs["training_loss"]), float(logs["learning_rate"])
    assert seen[1][1] == pytest.approx(1e-3 * 1000 ** (4 / 12), rel=1e-5)
    np.testing.assert_allclose(seen[2], seen[1], rtol=1e-5)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"total_steps": None}, "total_steps is not set"),
        ({"decide_every": 0}, "decide_every must be a whole number >= 1"),
        ({"max_learning_rate": 1e-4}, "needs 0 < min < max"),
        ({"total_steps": 23}, "would be 0 from step 23 of trainer.train_steps=24 on, because "
         "trainer.optimizer_config.learning_rate.tf_lamb_auto_warmup.total_steps is 23. Write .*"
         "total_steps=24, or trainer.train_steps=23"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused_before_training(records, tmp_path, fields, says):
    with pytest.raises(UserError, match=says):
        check_run(params_of(records, **fields), "train", str(tmp_path / "new"))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"warmup": {"type": "tf_lamb"}}, "warms up itself. Write .*warmup.type=null"),
        (optimizer(adascale={"scale": 8}), "a learning rate of its own.* adascale.scale=null"),
    ],
)
def test_what_sets_the_rate_too_is_refused(records, tmp_path, config, says):
    params = params_of(records)
    params.trainer.optimizer_config.override(config)
    with pytest.raises(UserError, match=says):
        check_run(params, "train", str(tmp_path / "new"))


def test_it_is_no_schedule_of_a_decay(records):
    params = params_of(records)
    decay = {"type": KEY, KEY: {"total_steps": STEPS, "decide_every": 1}}
    given = optimizer(weight_decay=0.0, weight_decay_schedule=decay)
    params.trainer.optimizer_config.override(given)
    with pytest.raises(UserError, match=f"weight_decay_schedule.type={KEY} is no schedule. Write"):
        check_optimizer(params)


def test_a_run_that_goes_on_with_it_jumps_nowhere(records):
    """Nobody knows its rate beforehand."""
    before = params_of(records)
    params = params_of(records, min_learning_rate=1e-4)
    assert schedule_configs.jump(before.as_dict(), params.trainer.optimizer_config, 4) is None
