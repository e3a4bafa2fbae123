"""One stage after another, at another length and batch, wherever it was interrupted."""

import signal

import numpy as np
import pytest
import yaml

pytest.importorskip("official")

import tensorflow as tf
from official.core import train_utils
from official.modeling.optimization import OptimizerFactory
from support import commands
from support.frontends import uncompiled
from support.garden import BATCH, assert_same_bits, build, one_device, tiny, trainer_of

from tf_lamb.model_garden import train_stages
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.folders import checkpoints, model_dirs


def stage_settings(records, stage):
    """The second at half the batch of the first."""
    settings = tiny(records, train_steps=(12, 8)[stage - 1], steps_per_loop=1,
                    checkpoint_interval=2, validation_interval=20, validation_steps=1)  # fmt: skip
    settings["runtime"]["distribution_strategy"] = "off"
    settings["task"]["train_data"] |= {"resume_in_order": True, "deterministic": True}
    settings["task"]["train_data"]["global_batch_size"] = BATCH // stage
    return settings


@pytest.fixture
def files(records, tmp_path):
    paths = []
    for stage in (1, 2):
        path = tmp_path / f"stage{stage}.yaml"
        path.write_text(yaml.safe_dump(stage_settings(records, stage)))
        paths.append(str(path))
    return paths


@pytest.mark.slow
def test_killed_in_either_stage_it_ends_with_the_same_bits(files, tmp_path):
    def command(folder):
        return "tf_lamb.model_garden.train_stages", [
            "--mode=train",
            "--seed=1",
            f"--stage=lamb/bert_pretraining:{files[0]}",
            f"--stage=lamb/bert_pretraining_phase2:{files[1]}",
            f"--model_dir={tmp_path / folder}",
        ]

    code, said = commands.run(*command("whole"))
    assert code == 0, said[-2000:]
    assert "All 2 stages are trained" in said and len(said.splitlines()) <= 40, said
    killed = tmp_path / "killed"
    for stage, enough in (("stage_1", 4), ("stage_2", 2)):
        process = commands.started(*command("killed"))
        commands.wait_for_step(process, killed / stage, enough)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert checkpoints.steps_done(str(killed / "stage_1")) == 12
    assert checkpoints.steps_done(str(killed / "stage_2")) >= 2
    code, said = commands.run(*command("killed"))
    assert code == 0, said[-2000:]
    for stage in ("stage_1", "stage_2"):
        assert_same_bits(tmp_path / "whole" / stage, killed / stage)
    # A finished run is told so, and trains no more.
    code, said = commands.run(*command("killed"))
    assert code == 0
    assert "Training stage" not in said


# What a stage takes over.


@pytest.fixture(scope="module")
def stage_1(records, tmp_path_factory):
    """Weights and moments after a few steps, and their folder."""
    folder = tmp_path_factory.mktemp("stage_1")
    trainer = trainer_of(build(tiny(records)), one_device())
    with uncompiled():
        trainer.train(tf.constant(3))
    trainer.checkpoint.save(str(folder / "ckpt"))
    return trainer, folder


def stage_2(records, folder, **task):
    warmup = {"warmup": {"tf_lamb": {"begin_step": 3 if task else 0}}}
    settings = tiny(records, optimizer_config=warmup)
    settings["task"] |= {"init_checkpoint": str(folder), **task}
    trainer = trainer_of(build(settings), one_device())
    trainer.initialize()
    return trainer


def weights_and_moments(trainer):
    weights = {weight.name: weight.numpy() for weight in trainer.model.weights}
    return weights, [m.numpy() for m, _ in trainer.optimizer._storage.slots]


def test_moments_are_reset_or_kept_with_the_steps_of_bias_correction(records, stage_1, eager):
    first, folder = stage_1
    reset, kept = stage_2(records, folder), stage_2(records, folder, init_optimizer=True)
    weights, old = weights_and_moments(first)
    for trainer in (reset, kept):
        assert float(trainer.optimizer.learning_rate) == 0.0
        trainer.train(tf.constant(1))  # some layers are only built by a step
        np.testing.assert_equal(weights_and_moments(trainer)[0], weights)
    assert reset.optimizer.iterations.numpy() == reset.global_step.numpy() == 1
    assert (kept.optimizer.iterations.numpy(), kept.global_step.numpy()) == (4, 1)
    # From the same weights and the same batch: m = 0.9 m + 0.1 g, with and without the first m.
    new, added = weights_and_moments(kept)[1], weights_and_moments(reset)[1]
    for m, m_kept, m_reset in zip(old, new, added, strict=True):
        np.testing.assert_allclose(m_kept, 0.9 * m + m_reset, rtol=1e-5, atol=1e-7)
    assert any(np.any(m) for m in old)
    # Both are warmed up again: half of the way after one of two steps.
    for trainer in (reset, kept):
        assert float(trainer.optimizer.learning_rate) == pytest.approx(0.005)


@pytest.mark.parametrize("kind", ["polynomial", "tf_lamb_polynomial"])
def test_a_weight_decay_schedule_begins_with_the_stage(records, kind):
    steps = "steps" if kind.startswith("tf_lamb") else "decay_steps"
    falling = {"initial_learning_rate": 0.1, steps: 4, "end_learning_rate": 0.0}
    schedule = {"weight_decay": 0.0, "weight_decay_schedule": {"type": kind, kind: falling}}
    config = {
        "optimizer": {"type": "tf_lamb", "tf_lamb": schedule},
        "warmup": {"tf_lamb": {"begin_step": 12}},
    }
    params = build(tiny(records, optimizer_config=config)).trainer.optimizer_config
    factory = OptimizerFactory(params)
    optimizer = factory.build_optimizer(factory.build_learning_rate())
    decay = [float(optimizer.weight_decay(step)) for step in (12, 14, 16)]
    np.testing.assert_allclose(decay, [0.1, 0.05, 0.0], atol=1e-8)


# What is refused, before the first stage has trained a step.


def a_stage(path, tmp_path, i, **more):
    return train_stages.Stage(
        experiment="lamb/bert_pretraining",
        config_file=[path],
        model_dir=str(tmp_path / f"stage_{i}"),
        **more,
    )


WARMUP = "trainer.optimizer_config.warmup.tf_lamb"
GIVEN = "task.init_checkpoint=GIVEN,trainer.max_to_keep=3"
WITH_STEPS = f"{GIVEN},task.init_optimizer=true,{WARMUP}.begin_step=3"
SECOND = "stage_2.trainer.train_steps=7,stage_2.task.init_checkpoint=GIVEN"


@pytest.mark.parametrize(
    ("override", "keep", "begins", "with_optimizer", "steps"),
    [
        ("", True, ["", "BEFORE"], [False, True], [0, 12]),
        ("", False, ["", "BEFORE"], [False, False], [0, 0]),
        (GIVEN, False, ["GIVEN", "BEFORE"], [False, False], [0, 0]),
        # With the optimizer's steps: those of the checkpoint are told to the first alone.
        (WITH_STEPS, True, ["GIVEN", "BEFORE"], [True, True], [3, 3 + 12]),
        (WITH_STEPS, False, ["GIVEN", "BEFORE"], [True, False], [3, 0]),
        (SECOND, False, ["", "GIVEN"], [False, False], [0, 0]),
    ],
)
def test_where_each_stage_begins(
    files, tmp_path, stage_1, override, keep, begins, with_optimizer, steps
):
    """What an override says of it holds for the first stage, or for the one that it names."""
    override = override.replace("GIVEN", str(stage_1[1]))
    parsed = train_stages.prepare(both(files, tmp_path, override), keep)
    places = {"": "", "GIVEN": str(stage_1[1]), "BEFORE": str(tmp_path / "stage_1")}
    assert [p.task.init_checkpoint or "" for p in parsed] == [places[name] for name in begins]
    assert [p.task.init_optimizer for p in parsed] == with_optimizer
    assert [p.trainer.optimizer_config.warmup.tf_lamb.begin_step for p in parsed] == steps
    assert parsed[1].trainer.train_steps == (7 if "stage_2" in override else 8)
    assert parsed[1].trainer.max_to_keep == (3 if "max_to_keep" in override else 5)


@pytest.mark.parametrize(
    "config", ["optimizer.type=tf_lamb", "ema.average_decay=0.9", "optimizer.type=adamw"]
)
def test_a_stage_begins_after_the_updates_of_the_one_before(files, tmp_path, config):
    """Which are fewer than its steps where some were skipped."""
    stages = both(files, tmp_path, f"trainer.optimizer_config.{config}")
    first, _ = train_stages.prepare(stages, True)
    trainer = trainer_of(first, one_device())
    folder = str(tmp_path / "stage_1")
    train_utils.serialize_config(first, folder)
    manager = tf.train.CheckpointManager(trainer.checkpoint, folder, 1)
    for steps, updates, expected in ((10, 7, 7 + 12 - 10), (12, 8, 8)):
        trainer.global_step.assign(steps)
        trainer.optimizer.iterations.assign(updates)
        manager.save()
        _, second = train_stages.prepare(stages, True)
        assert second.trainer.optimizer_config.warmup.tf_lamb.begin_step == expected


@pytest.mark.parametrize(
    ("change", "keep", "expected"),
    [
        ("task.model.encoder.bert.max_position_embeddings=32", False,
         "stage 2: it cannot take over the weights of the stage before: its "
         "task.model.encoder.bert.max_position_embeddings is 16, yours 32"),
        ("trainer.optimizer_config.optimizer.type=tf_adamp", True,
         "optimizer.type of the stage before is 'tf_lamb', and of this one 'tf_adamp'. Write the"),
        ("trainer.optimizer_config.optimizer.tf_lamb.dtypes.slots=bfloat16", True,
         "slots of the stage before is 'float32', and of this one 'bfloat16'. Write the same"),
        ("trainer.optimizer_config.optimizer.tf_lamb.adascale.scale=2", True,
         "adascale.scale of the stage before is 'not set', and of this one 'set'"),
        ("trainer.optimizer_config.warmup.type=linear", True, "needs trainer.optimizer_config"),
        ("task.train_data.input_path=no/such/file", False, "there is no file no/such/file"),
        ("trainer.trian_steps=1", False, "stage 2: --params_override: there is no trainer.trian"),
        ("stage_3.trainer.train_steps=7", False, "there is no stage_3, only 2 stages"),
        ("stage_02.trainer.train_steps=7", False, "there is no stage_02. Write stage_2"),
        ("stage_2=7", False, "stage_2 takes settings, but it is given 7"),
    ],
)  # fmt: skip
def test_a_stage_that_cannot_follow(files, tmp_path, change, keep, expected):
    stages = [
        a_stage(files[0], tmp_path, 1),
        a_stage(files[1], tmp_path, 2, params_override=change),
    ]
    with pytest.raises(UserError) as error:
        train_stages.prepare(stages, keep)
    assert expected in str(error.value)


def test_a_start_in_the_file_of_a_later_stage_is_refused(files, tmp_path):
    """It would not be used, for the stage starts from the one before."""
    start = tmp_path / "start.yaml"
    start.write_text("task: {init_checkpoint: elsewhere}")
    stages = both(files, tmp_path, "")
    stages[1].config_file.append(str(start))
    with pytest.raises(UserError) as error:
        train_stages.prepare(stages, False)
    assert str(error.value) == (
        f"stage 2: --config_file={start} has task.init_checkpoint: elsewhere, but a stage starts "
        "from the one before. Leave it out, or write --params_override=stage_2.task."
        "init_checkpoint=elsewhere"
    )


def both(files, tmp_path, override):
    return [a_stage(path, tmp_path, i, params_override=override) for i, path in enumerate(files, 1)]


def checkpoint_at(folder, step):
    checkpoint = tf.train.Checkpoint(global_step=tf.Variable(step, dtype=tf.int64))
    manager = tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=1)
    return manager.save(checkpoint_number=step)


def test_a_stage_remembers_which_checkpoint_it_began_with(tmp_path):
    folder = str(tmp_path / "second")
    for step, expected in ((12, 12), (20, 20), (30, 20)):  # until it has a checkpoint of its own
        checkpoint_at(tmp_path / "first", step)
        model_dirs.write_run(folder, "lamb/bert_pretraining", 1, str(tmp_path / "first"))
        if step == 20:
            checkpoint_at(folder, 2)
        began = model_dirs.read_run(folder)["began_with"]
        assert began == str(tmp_path / "first" / f"ckpt-{expected}")


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "of an older version"])
def test_a_stage_is_not_lengthened_once_the_next_has_begun(files, tmp_path, noted):
    first, second = (tmp_path / f"stage_{i}" for i in (1, 2))
    parsed = train_stages.prepare(both(files, tmp_path, ""), False)
    checkpoint_at(first, 12)
    if noted:
        model_dirs.write_run(str(second), "lamb/bert_pretraining", 1, str(first))
    for folder, params, step in zip((first, second), parsed, (12, 3), strict=True):
        checkpoint_at(folder, step)
        model_dirs.write_params(params, str(folder))
    train_stages.prepare(both(files, tmp_path, ""), False)  # the second goes on
    longer = "stage_1.trainer.train_steps=20"
    with pytest.raises(UserError, match="stage 2: .* which is not over") as error:
        train_stages.prepare(both(files, tmp_path, longer), False)
    assert f"{second} began with ckpt-12 of {first}" in str(error.value)
    assert f"delete {second}" in str(error.value) and "\n" not in str(error.value)
    checkpoint_at(first, 20)  # by another command
    if noted:
        with pytest.raises(UserError, match="began with ckpt-12 of .* is at ckpt-20 now"):
            train_stages.prepare(both(files, tmp_path, longer), False)


def of_another_model(records, layers=2, positions=16, **task):
    settings = tiny(records)
    settings["task"] |= task
    own = {"num_layers": layers, "max_position_embeddings": positions}
    settings["task"]["model"]["encoder"]["bert"] |= own
    return trainer_of(build(settings), one_device())


@pytest.mark.parametrize(
    ("change", "words"),
    [({"layers": 2}, "it lacks 18 variables"), ({"layers": 1, "positions": 32}, r"\(16, 8\)")],
    ids=["deeper", "longer"],
)
def test_no_half_of_a_model_comes_from_a_checkpoint(records, stage_1, change, words):
    path = str(stage_1[1])
    words = f"task.init_checkpoint={path} does not fit this model: .*{words}"
    with pytest.raises(UserError, match=words):
        of_another_model(records, **change, init_checkpoint=path).initialize()


def test_a_model_may_begin_with_half_of_a_checkpoints_which_is_told(records, tmp_path, caplog):
    path = of_another_model(records).checkpoint.save(str(tmp_path / "ckpt"))
    of_another_model(records, 1, init_checkpoint=path).initialize()
    (told,) = [line for line in caplog.messages if "left out" in line]
    assert told.startswith(
        f"task.init_checkpoint={path} holds 16 variables that this model has not"
    )
    caplog.clear()
    of_another_model(records, init_checkpoint=path).initialize()
    assert not [line for line in caplog.messages if "left out" in line]
