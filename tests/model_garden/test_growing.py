"""A batch that grows: one experiment, in stages of larger and larger batches."""

import types

import numpy as np
import pytest
import yaml

pytest.importorskip("official")


from official.core import task_factory
from official.modeling.optimization import OptimizerFactory
from support.garden import BATCH, build, one_device, tiny, trainer_of

from tf_lamb.core import recipes, schedules
from tf_lamb.model_garden import train_stages
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments.recipes import recipe_of

STEPS, WARM = 96, 4


def rate(kind, warmup="tf_lamb", **settings):
    """A learning rate of STEPS steps, and how it warms up."""
    ours = {"steps": STEPS - WARM, "handover": "continuous"}
    return {
        "learning_rate": {"type": kind, kind: settings},
        "warmup": {"type": warmup, **{
            None: {},
            "tf_lamb": {"tf_lamb": {**ours, "steps": WARM, "start": 0.001}},
            "linear": {"linear": {"warmup_steps": WARM, "warmup_learning_rate": 0.001}},
            "polynomial": {"polynomial": {"warmup_steps": WARM}},
        }[warmup]},
    }  # fmt: skip


OURS = {"initial_learning_rate": 0.1, "steps": STEPS - WARM, "end_learning_rate": 0.002}
THEIRS = {"initial_learning_rate": 0.1, "decay_steps": STEPS, "power": 2.0}
LINEAR = rate("tf_lamb_polynomial", **OURS)


def settings_of(records, config=LINEAR, **trainer):
    settings = tiny(records, train_steps=STEPS, optimizer_config=config, **trainer)
    settings["runtime"]["distribution_strategy"] = "off"
    settings["task"]["train_data"] |= {"resume_in_order": True, "deterministic": True}
    return settings


def stage(records, folder, config=LINEAR, trainer=None, **more):
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(settings_of(records, config, **(trainer or {}))))
    model_dir = str(folder / "run" / "stage_1")
    return train_stages.Stage("lamb/bert_pretraining", [str(path)], model_dir, **more)


def prepared(given, largest_batch):
    """The experiments of all stages, and what is said of them first."""
    stages, text = train_stages.split_by_batch_growth(given, largest_batch)
    return train_stages.prepare(stages, True), text


def rates_of(params, steps):
    rate = OptimizerFactory(params.trainer.optimizer_config).build_learning_rate()
    return np.array([float(rate(step)) for step in steps])


@pytest.mark.parametrize(
    "config",
    [
        LINEAR,
        rate("tf_lamb_polynomial", None, **OURS, power=0.5),
        rate("tf_lamb_polynomial", "linear", **OURS),
        rate("polynomial", None, **THEIRS),
        rate("polynomial", "linear", **THEIRS),
        rate("polynomial", **THEIRS),
        rate("stepwise", "linear", boundaries=[30, 50], values=[0.1, 0.01, 0.001]),
        rate("stepwise", None, boundaries=[30], values=[0.1, 0.05]),
        rate("tf_lamb_multi_step", boundaries=[30, 50.5], learning_rates=[0.1, 0.02, 0.004]),
    ],
)
def test_a_recipe_has_the_rates_of_the_experiment(records, config):
    params = build(settings_of(records, config))
    recipe = recipe_of(params, "this")
    steps = np.arange(STEPS)
    expected = rates_of(params, steps)
    got = recipe.schedule(schedules).value(np, steps)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert len(set(expected)) > 1


@pytest.mark.parametrize(("optimizer", "power"), [("tf_lamb", 0.5), ("sgd", 1.0)])
def test_the_stages_have_the_rates_of_the_recipe_step_by_step(records, tmp_path, optimizer, power):
    config = {**LINEAR, "optimizer": {"type": optimizer, "tf_lamb": {"global_clipnorm": None}}}
    whole = build(settings_of(records, config))
    staged = recipes.growing(recipe_of(whole, "this"), 4 * BATCH)
    stages, text = prepared(stage(records, tmp_path, config), 4 * BATCH)
    assert [p.task.train_data.global_batch_size for p in stages] == [BATCH, 2 * BATCH, 4 * BATCH]
    assert [p.trainer.train_steps for p in stages] == [s.train_steps for s in staged]
    assert text.startswith("lamb/bert_pretraining with a batch that grows: 51 + 12 + 6 = 69 steps")
    rates = staged.schedule(schedules).value(np, np.arange(staged.train_steps))
    begin, seen = 0, 0
    for params in stages:
        steps = np.arange(begin, begin + params.trainer.train_steps)  # the optimizer counts on
        np.testing.assert_allclose(rates_of(params, steps), rates[steps], rtol=1e-6)
        # What the recipe of the core is: a multiple of the experiment's rate at these examples.
        k = params.task.train_data.global_batch_size / BATCH
        first = rates_of(whole, [seen / BATCH])[0] * k**power
        assert rates[begin] == pytest.approx(first, rel=1e-6)
        assert params.task.train_data.begin_example == seen
        begin = steps[-1] + 1
        seen += len(steps) * params.task.train_data.global_batch_size
    assert [bool(params.task.init_optimizer) for params in stages] == [False, True, True]


def test_what_else_is_counted_in_steps(records, tmp_path):
    config = {**LINEAR, "ema": {"start_step": 58}}
    trainer = {"steps_per_loop": 2, "checkpoint_interval": 16, "validation_interval": 8}
    stages, _ = prepared(stage(records, tmp_path, config, trainer), 4 * BATCH)
    names = "steps_per_loop", "checkpoint_interval", "validation_interval"
    counts = [[getattr(p.trainer, name) for name in names] for p in stages]
    assert counts == [[2, 16, 8], [1, 8, 4], [1, 4, 2]]  # at the same examples
    # 58 - 51 = 7 steps of the experiment are 4 updates of the second stage, at most.
    assert [p.trainer.optimizer_config.ema.start_step for p in stages] == [55] * 3


def test_flags_and_overrides(records, tmp_path):
    """Flags and overrides scale what grows, and one for a stage has the last word."""
    given = stage(
        records, tmp_path, global_batch_size=2 * BATCH, per_replica_batch_size=BATCH,
        params_override="trainer.max_to_keep=3,"
        "trainer.optimizer_config.learning_rate.tf_lamb_polynomial.end_learning_rate=0.0,"
        "stage_2.trainer.max_to_keep=4,stage_2.trainer.train_steps=5",
    )  # fmt: skip
    stages, text = prepared(given, 8 * BATCH)
    assert text.startswith("LEGW")
    batches = [p.task.train_data.global_batch_size for p in stages]
    assert batches == [2 * BATCH, 4 * BATCH]  # 32 steps are too few for more
    adam = [p.trainer.optimizer_config.optimizer.tf_lamb for p in stages]
    assert [each.gradient_accumulation_steps for each in adam] == [2, 4]
    assert [p.trainer.max_to_keep for p in stages] == [3, 4]
    assert stages[1].trainer.train_steps == 5
    end = [p.trainer.optimizer_config.learning_rate.tf_lamb_polynomial for p in stages]
    assert [each.end_learning_rate for each in end] == [0.0, 0.0]


def test_data_go_on_with_the_example_after_those_of_earlier_stages(records):
    params = build(settings_of(records))
    data = params.task.train_data
    data.global_batch_size = 2 * BATCH
    task = task_factory.get_task(params.task, logging_dir="")

    def first(begin_example):
        batches = task.build_inputs(data.replace(begin_example=begin_example))
        return [batch["input_word_ids"].numpy() for batch in batches.take(2)]

    whole, later = first(0), first(2 * BATCH)
    np.testing.assert_array_equal(whole[1], later[0])
    assert np.any(whole[0] != whole[1])


def test_averages_are_kept_with_the_optimizer(records, tmp_path):
    config = {**LINEAR, "ema": {"average_decay": 0.5}}
    settings = settings_of(records, config)
    first = trainer_of(build(settings), one_device())
    for i, average in enumerate(first.optimizer._average_weights):
        average.assign(np.full(average.shape, i + 1.0))
    first.checkpoint.save(str(tmp_path / "ckpt"))
    settings["task"] |= {"init_checkpoint": str(tmp_path), "init_optimizer": True}
    second = trainer_of(build(settings), one_device())
    second.initialize()
    for i, average in enumerate(second.optimizer._average_weights):
        assert np.all(average.numpy() == i + 1.0)


@pytest.mark.parametrize(
    ("config", "flags", "expected"),
    [
        ({}, {"largest_batch": 2 * BATCH - 1},
         "--largest_batch=15 is less than twice task.train_data.global_batch_size=8. Write "
         "--largest_batch=16, or more"),
        ({}, {"largest_batch": 128, "override": "trainer.train_steps=4000,trainer.optimizer_config."
              "learning_rate.tf_lamb_polynomial.steps=3996"}, "larger than all 64 examples"),
        (rate("cosine", initial_learning_rate=0.1, decay_steps=STEPS), {},
         "no batch grows with learning_rate.type=cosine and warmup.type=tf_lamb. Write"),
        (rate("polynomial", "polynomial", **THEIRS), {}, "and warmup.type=polynomial"),
        (rate("stepwise", None, boundaries=[30, 50], values=[0.1, 0.01, 0.005]), {},
         "no batch grows with learning_rate.type=stepwise"),
        (rate("polynomial", **THEIRS, cycle=True), {}, "without offset or cycle"),
        (rate("tf_lamb_polynomial", **{**OURS, "end_learning_rate": 0.06}), {},
         "--largest_batch=32: The rate of lamb/bert_pretraining never falls to half"),
        ({"optimizer": {"tf_lamb": {"adascale": {"scale": 2}, "gradient_accumulation_steps": 2}}},
         {},
         "Write trainer.optimizer_config.optimizer.tf_lamb.adascale.scale=null"),
        ({"optimizer": {"tf_lamb": {"weight_decay": 0.0, "weight_decay_schedule": {
            "type": "tf_lamb_polynomial", "tf_lamb_polynomial": OURS}}}}, {},
         "--largest_batch takes fewer steps, which trainer.optimizer_config.optimizer.tf_lamb."
         "weight_decay_schedule counts. Write trainer.optimizer_config.optimizer.tf_lamb."
         "weight_decay_schedule.type=null, and a number as weight_decay"),
        ({}, {"override": "task.train_data.global_batch_size=9,runtime.num_gpus=2,"
              "runtime.distribution_strategy=mirrored"}, "cannot be dealt out to 2 replica(s)"),
    ],
)  # fmt: skip
def test_a_batch_that_cannot_grow(records, tmp_path, config, flags, expected):
    flags = {"largest_batch": 4 * BATCH, **flags}
    given = stage(records, tmp_path, {**LINEAR, **config},
                  params_override=flags.get("override", ""))  # fmt: skip
    with pytest.raises(UserError) as error:
        prepared(given, flags["largest_batch"])
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("stages", "moments", "expected"),
    [
        (2, None, "of one experiment, and 2 of --stage are given. Write one"),
        (1, "reset", "--largest_batch=64 keeps the moments, which --moments=reset would set to"),
    ],
)
def test_flags_that_do_not_go_together(stages, moments, expected):
    args = types.SimpleNamespace(
        mode="train", experiment=None, config_file=None, stage=["lamb/bert_pretraining"] * stages,
        moments=moments, largest_batch=64,
    )  # fmt: skip
    with pytest.raises(UserError, match=expected):
        train_stages._train(args, None)
