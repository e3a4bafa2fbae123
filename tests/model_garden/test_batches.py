"""Say the batch, get the rest; and deal it out to replicas and micro-batches."""

import numpy as np
import pytest
import yaml

pytest.importorskip("official")

import tensorflow as tf
from official.core import exp_factory
from official.modeling import optimization
from official.modeling.optimization import OptimizerFactory
from support.batch_flags import Flags
from support.clusters import all_reduces
from support.frontends import uncompiled
from support.garden import BATCH, build, one_device, optimizer, tiny, train, trainer_of, weights

from tf_lamb.core import recipes, schedules
from tf_lamb.model_garden import train_stages
from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common import batches
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments import parsing
from tf_lamb.model_garden.experiments.recipes import settings_of_recipe


def filled(config=None, path=None, **flags):
    """What the flags make of an experiment; of a config, if one is given, that is written there."""
    if config:
        path.write_text(yaml.safe_dump(config))
        flags["config_file"] = [str(path)]
    return parsing.parse(Flags(**flags))


# Schedules.


def built(config):
    return OptimizerFactory(
        optimization.OptimizationConfig({"optimizer": {"type": "tf_lamb"}, **config})
    ).build_learning_rate()


@pytest.mark.parametrize("handover", ["drop", "continuous"])
def test_the_learning_rate_is_the_one_of_the_core(handover):
    decay = {"initial_learning_rate": 2.0, "steps": 1000, "power": 0.5}
    warmup = {"steps": 200, "kind": "exponential", "start": 0.001, "handover": handover}
    exact = schedules.Warmup(after=schedules._Polynomial(**decay), **warmup)
    rate = built({
        "learning_rate": {"type": "tf_lamb_polynomial", "tf_lamb_polynomial": decay},
        "warmup": {"type": "tf_lamb", "tf_lamb": warmup},
    })  # fmt: skip
    for step in (0, 100, 199, 200, 201, 700, 1200):
        assert float(rate(step)) == pytest.approx(exact.value(np, float(step)), abs=1e-6)


def test_warmup_stands_in_front_of_model_gardens_own():
    schedule = built({
        "learning_rate": {"type": "cosine", "cosine": {
            "initial_learning_rate": 1.0, "decay_steps": 100}},
        "warmup": {"type": "tf_lamb", "tf_lamb": {"steps": 10}},
    })  # fmt: skip
    rates = [float(schedule(step)) for step in (0, 5, 10, 60)]
    np.testing.assert_allclose(rates, [0, 0.5, 1, 0.5], atol=1e-6)
    constant = built({
        "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.5}},
        "warmup": {"type": "tf_lamb", "tf_lamb": {"steps": 10, "begin_step": 100}},
    })  # fmt: skip
    assert [float(constant(step)) for step in (0, 100, 105, 500)] == [0, 0, 0.25, 0.5]


# The batch flag.


@pytest.mark.parametrize("batch", [512, 4096, 32768])
@pytest.mark.parametrize(
    ("experiment", "recipe"),
    [
        ("lamb/bert_pretraining", "untuned_lamb_bert"),
        ("lamb/resnet_imagenet", "untuned_lamb_resnet50"),
        ("lars/resnet_imagenet", "legw_resnet50_lars"),
    ],
)
def test_the_batch_alone_gives_the_published_table(experiment, recipe, batch):
    params, text = filled(experiment=experiment, global_batch_size=batch)
    published = exp_factory.get_exp_config(experiment)
    published.override(settings_of_recipe(recipes.published(recipe, batch)), is_strict=True)
    assert params.task.train_data.global_batch_size == batch
    assert params.trainer.train_steps == published.trainer.train_steps
    ours, theirs = params.trainer.optimizer_config, published.trainer.optimizer_config
    for part in ("learning_rate", "warmup"):
        assert getattr(ours, part).get().as_dict() == pytest.approx(
            getattr(theirs, part).get().as_dict()
        )
    assert f"{params.trainer.train_steps:,} steps" in text


WARMED = {
    "learning_rate": {"type": "polynomial", "polynomial": {
        "initial_learning_rate": 0.01, "end_learning_rate": 0.001, "decay_steps": 400}},
    "warmup": {"type": "linear", "linear": {"warmup_steps": 40}},
}  # fmt: skip


def test_the_yamls_own_batch_is_the_baseline(records, tmp_path):
    config = tiny(records, train_steps=400, steps_per_loop=20, summary_interval=40,
                  checkpoint_interval=200, validation_interval=100)  # fmt: skip
    config["trainer"]["optimizer_config"] = WARMED
    params, text = filled(config, tmp_path / "a.yaml", global_batch_size=4 * BATCH)
    trainer = params.trainer
    assert (trainer.train_steps, trainer.steps_per_loop, trainer.summary_interval) == (100, 5, 10)
    assert (trainer.checkpoint_interval, trainer.validation_interval) == (50, 25)
    rate = trainer.optimizer_config.learning_rate.polynomial
    # Warmup ends on the decay: at 0.0091 of 400 steps, and at twice that of 100.
    assert (rate.initial_learning_rate, rate.end_learning_rate) == (pytest.approx(0.029), 0.002)
    assert rate.decay_steps == 100
    assert trainer.optimizer_config.warmup.linear.warmup_steps == 40
    assert "learning rate = 0.0091 x sqrt(4) = 0.0182" in text
    assert "where warmup ends = 0.0182: initial_learning_rate = 0.029 (0.01 before)" in text


def test_transfer_moves_decay_beta_2_and_averages_too(records, tmp_path):
    config = tiny(records, train_steps=400)
    config["trainer"]["optimizer_config"] |= WARMED | {
        "optimizer": {"type": "tf_lamb", "tf_lamb": {"weight_decay": 0.02, "beta_2": 0.99}},
        "ema": {"average_decay": 0.96},
    }  # fmt: skip
    flags = {"global_batch_size": 4 * BATCH, "recipe": "transfer"}
    params, text = filled(config, tmp_path / "a.yaml", **flags)
    moved = params.trainer.optimizer_config
    assert params.trainer.train_steps == 100
    assert moved.learning_rate.polynomial.initial_learning_rate == pytest.approx(0.02)
    assert moved.warmup.linear.warmup_steps == 10  # as many epochs
    assert moved.optimizer.tf_lamb.weight_decay == pytest.approx(0.04)  # twice the rate
    assert moved.optimizer.tf_lamb.beta_2 == pytest.approx(0.99**4)
    assert moved.ema.average_decay == pytest.approx(0.96**4)
    assert all(name in text for name in ("learning_rate", "weight_decay", "beta_2", "ema_momentum"))
    # What the command line says outright, holds.
    override = "trainer.optimizer_config.optimizer.tf_lamb.weight_decay=0.5"
    said, text = filled(config, tmp_path / "a.yaml", **flags, params_override=override)
    assert said.trainer.optimizer_config.optimizer.tf_lamb.weight_decay == 0.5
    assert "as --params_override has it" in text


def test_a_recipe_of_mlperf_begins_without_warmup_where_its_run_did():
    params, text = filled(recipe="mlperf_lamb_bert", global_batch_size=4096)
    config = params.trainer.optimizer_config
    assert (params.trainer.train_steps, config.warmup.type) == (855, None)
    assert config.learning_rate.tf_lamb_polynomial.as_dict() == {
        "initial_learning_rate": 2.4e-3, "steps": 855, "end_learning_rate": 0.0, "power": 1.0,
    }  # fmt: skip
    lamb = config.optimizer.tf_lamb
    assert (lamb.beta_1, lamb.beta_2, lamb.weight_decay) == (0.66, 0.998, 0.01)
    assert "the target took 2,843,000 examples" in text


@pytest.mark.parametrize(
    ("recipe", "batch", "tokens", "steps", "warmup", "rate", "power"),
    [
        ("nvidia_bert", 65536, 128, 7038, 2000, 6e-3, 0.5),
        ("nvidia_bert", 32768, 512, 1563, 200, 4e-3, 0.5),
        ("bert_mixed_batch", 32768, 512, 1562, 200, 4e-3, 1.0),
    ],
)
def test_the_batch_names_the_stage_of_a_recipe(recipe, batch, tokens, steps, warmup, rate, power):
    override = f"task.train_data.seq_length={tokens}"
    params, text = filled(recipe=recipe, global_batch_size=batch, params_override=override)
    config = params.trainer.optimizer_config
    decay = config.learning_rate.tf_lamb_polynomial
    assert (params.task.train_data.global_batch_size, params.trainer.train_steps) == (batch, steps)
    assert (decay.initial_learning_rate, decay.steps, decay.power) == (rate, steps, power)
    assert (config.warmup.tf_lamb.steps, config.warmup.tf_lamb.handover) == (warmup, "drop")
    assert f"sequence length {tokens}" in text


@pytest.mark.parametrize(("batch", "batches"), [(None, [65536, 32768]), (32768, [32768, 32768])])
def test_a_recipe_in_stages_gives_every_stage_its_batch(batch, batches):
    flags = Flags(recipe="nvidia_bert", global_batch_size=batch, params_override="", tpu="")
    flags.model_dir, flags.tf_data_service = "runs", None
    flags.stage = ["lamb/bert_pretraining", "lamb/bert_pretraining_phase2"]
    stages = train_stages._stages(flags)
    assert [stage.global_batch_size for stage in stages] == batches
    assert [stage.recipe for stage in stages] == ["nvidia_bert", "nvidia_bert"]
    flags.stage, flags.global_batch_size = flags.stage[:1], None
    with pytest.raises(UserError, match="nvidia_bert has 2 stages, and 1 of --stage are given"):
        train_stages._stages(flags)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"recipe": "mlperf_lamb_bert", "global_batch_size": 512},
         "no reference point at batch 512"),
        ({"recipe": "nvidia_bert", "global_batch_size": 4096},
         "nvidia_bert has a batch a stage, 65,536 and 32,768, and no stage at 4,096"),
        ({"recipe": "nvidia_bert", "global_batch_size": 65536},
         "NVIDIA BERT-large, stage 1, trains on sequences of 128 tokens, but task.train_data."
         "seq_length is 512. Write task.train_data.seq_length=128"),
        ({"recipe": "untuned_lamb_resnet50", "global_batch_size": 512},
         "untuned_lamb_resnet50 is a recipe for ResNet-50, but this experiment trains BERT"),
        ({"global_batch_size": 512 * 640},
         "warmup is longer than training, 3,125 > 1,563 steps"),
        ({"experiment": "bert/text_wiki_pretraining", "global_batch_size": 7,
          "params_override": "trainer.train_stps=5"}, "no trainer.train_stps"),
        ({"per_replica_batch_size": 8, "params_override":
          "trainer.optimizer_config.optimizer.type=adamw"}, "only optimizers of tf_lamb"),
        ({"per_replica_batch_size": 8, "global_batch_size": 1000, "params_override":
          "runtime.distribution_strategy=mirrored,runtime.num_gpus=3"},
         "1,000 / 3 = 333.333. Take a batch of 999"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_no_recipe_can_fill_in(flags, expected):
    with pytest.raises(UserError) as error:
        filled(**flags)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


# Micro-batches.


def test_a_batch_is_dealt_out():
    assert batches.per_replica_batch(65536, 8, 256) == 32
    assert batches.accumulation(65536, 8, 60) == 256
    assert batches.accumulation(96, 2, 1000) == 1
    params, text = filled(
        global_batch_size=32768,
        per_replica_batch_size=50,
        params_override="runtime.distribution_strategy=mirrored,runtime.num_gpus=8",
    )
    lamb = params.trainer.optimizer_config.optimizer.tf_lamb
    assert lamb.gradient_accumulation_steps == 128
    assert "32 examples x 8 replica(s) x 128 micro-batch(es) = 32,768" in text
    assert (
        "not 50 examples at once: 32 is the largest number up to --per_replica_batch_size=50 that "
        "divides the 4,096 of a replica" in text
    )


@pytest.fixture(scope="module")
def in_one_piece(records):
    with uncompiled():
        return _trained(records, None)


def _trained(records, accumulation):
    config = tiny(records, optimizer_config=optimizer(gradient_accumulation_steps=accumulation))
    config["task"]["train_data"]["shuffle_buffer_size"] = 1
    return train(build(config), one_device(), 5)


@pytest.mark.parametrize("accumulation", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_micro_batches_equal_the_batch(records, in_one_piece, accumulation):
    whole, whole_logs = in_one_piece
    parts, logs = _trained(records, accumulation)
    assert parts.global_step.numpy() == parts.optimizer.iterations.numpy() == 5
    assert logs["learning_rate"] == whole_logs["learning_rate"]
    # One sum of gradients, whatever the number of its parts.
    size = sum(v.numpy().size for v in parts.model.trainable_variables)
    kept = sum(v.numpy().size for v in parts.optimizer.variables)
    assert 3 * size < kept < 3 * size + 10
    for a, b in zip(weights(whole), weights(parts), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_step_of_the_trainer_sums_replicas_once(records, precision):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    config = tiny(records, optimizer_config=optimizer(gradient_accumulation_steps=2))
    config["runtime"]["mixed_precision_dtype"] = precision  # of which only the scale is meant
    trainer = trainer_of(build(config), strategy)
    with strategy.scope():
        iterator = iter(trainer.train_dataset)
        step = tf.function(lambda: trainer.train_step(iterator))
        assert all_reduces(step) == (0, 2)  # on each of two replicas


# What is refused.


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"trainer": {"optimizer_config": optimizer(gradient_accumulation_steps=3)}},
         "task.train_data.global_batch_size=8: A batch of 8 examples cannot be dealt out to 1 "
         "replica(s) x 3 micro-batch(es): 8 / 3 = 2.66667. Take a batch of 6"),
        ({"trainer": {"train_steps": 1}}, "warmup is longer than training"),
        ({"task": {"init_optimizer": True}}, "task.init_optimizer needs task.init_checkpoint"),
        ({"task": {"init_checkpoint": "no/such/folder"}}, "no/such/folder: there is no checkpoint"),
        ({"task": {"train_data": {"seq_length": 512}}},
         "seq_length is 512, but the model has 16 positions"),
    ],
)  # fmt: skip
def test_a_batch_or_a_stage_that_cannot_be(records, tmp_path, change, expected):
    warmup = {"warmup": {"tf_lamb": {"steps": 2}}}
    params = build(tiny(records, optimizer_config=warmup)).replace(**change)
    with pytest.raises(UserError) as error:
        check_run(params, "train", str(tmp_path))
    assert expected in str(error.value)
    assert not list(tmp_path.iterdir())
