"""What a Model Garden user types, what it builds, and what it refuses."""

import contextlib
import dataclasses
import inspect

import gin
import numpy as np
import pytest
import yaml

pytest.importorskip("official")

import tensorflow as tf
from official.core import exp_factory, task_factory, train_utils
from official.modeling import hyperparams, optimization, performance
from support import commands
from support.batch_flags import Flags
from support.clusters import mirrored
from support.frontends import uncompiled
from support.garden import (
    BATCH,
    EXPERIMENT,
    build,
    checkpoint,
    one_device,
    optimizer,
    tf_lamb_of,
    tiny,
    train,
    trainer_of,
    weights,
)

import tf_lamb.tf_keras
from tf_lamb.api.variables import step_of
from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments import optimizers, parsing
from tf_lamb.model_garden.folders import checkpoints
from tf_lamb.model_garden.tasks import MaskedLMConfig

# Registration and configuration.


@pytest.mark.parametrize("key", optimizers.OPTIMIZERS)
def test_the_fields_are_the_arguments_of_the_constructor(key):
    arguments = {
        name: parameter.default
        for name, parameter in inspect.signature(optimizers.OPTIMIZERS[key]).parameters.items()
    }
    del arguments["learning_rate"], arguments["loss_scale_factor"]  # which is Keras 3's
    config = getattr(optimization.OptimizerConfig(), key)
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    del fields["adascale"], fields["measure_noise"]
    assert fields.pop("weight_decay_schedule").type is None
    assert fields.pop("trust_ratios_every") is None
    assert fields.pop("divergence_report") is True
    assert fields == arguments


@pytest.mark.parametrize(
    ("name", "wrapper"), [("adascale", "AdaScale"), ("measure_noise", "MeasureNoise")]
)
@pytest.mark.parametrize("key", optimizers.OPTIMIZERS)
def test_the_fields_of_a_wrapper_are_the_arguments_of_its_constructor(key, name, wrapper):
    own = dataclasses.asdict(getattr(getattr(optimization.OptimizerConfig(), key), name))
    taken = inspect.signature(getattr(tf_lamb.tf_keras, wrapper)).parameters
    assert own.keys() - {"enabled", "base_steps"} == taken.keys() - {"inner", "name"}
    shared = own.keys() & taken.keys() - {"scale"}
    assert {each: own[each] for each in shared} == {each: taken[each].default for each in shared}


def test_options_are_settings(records):
    rates = {"^transformer/layer_0/": {"rate": 0.5}, "embeddings": {"rate": 0.0}}
    own = optimizer(treatments=rates, dtypes={"slots": "bfloat16"})
    config = build(tiny(records, optimizer_config=own)).trainer.optimizer_config
    made = optimization.OptimizerFactory(config).build_optimizer(0.1).get_config()
    assert made["treatments"] == rates and made["dtypes"]["slots"] == "bfloat16"


def test_the_saved_params_give_the_same_experiment(records, tmp_path):
    params = build(tiny(records, optimizer_config=optimizer(exclude_from_layer_adaptation=[])))
    train_utils.serialize_config(params, str(tmp_path))
    again = exp_factory.get_exp_config(EXPERIMENT)
    hyperparams.override_params_dict(again, str(tmp_path / "params.yaml"), is_strict=True)
    assert again.as_dict() == params.as_dict()
    assert type(again.task) is MaskedLMConfig
    assert tf_lamb_of(again).exclude_from_layer_adaptation == []


SETTINGS = {
    "optimizer": {"type": "tf_lamb", "tf_lamb": {"beta_2": 0.99}},
    "learning_rate": {
        "type": "tf_lamb_polynomial",
        "tf_lamb_polynomial": {"initial_learning_rate": 0.1, "steps": 90},
    },
    "warmup": {"type": "tf_lamb", "tf_lamb": {"steps": 10}},
}
YAML = yaml.safe_dump({"trainer": {"train_steps": 100, "optimizer_config": SETTINGS}})


@pytest.mark.parametrize("name", sorted(parsing.experiments()))
def test_a_yaml_names_ours_in_every_experiment(name, tmp_path):
    (tmp_path / "some.yaml").write_text(YAML)
    params = exp_factory.get_exp_config(name)
    # As Model Garden's mains read a YAML.
    hyperparams.override_params_dict(params, str(tmp_path / "some.yaml"), is_strict=True)
    config = params.trainer.optimizer_config
    assert isinstance(config.optimizer.get(), optimizers.SETTINGS["tf_lamb"])
    assert config.optimizer.get().beta_2 == 0.99
    assert config.as_dict()["optimizer"].keys() == {"type", "tf_lamb"}
    config.ema = None
    factory = optimization.OptimizerFactory(config)
    rate = factory.build_learning_rate()
    assert float(rate(5)) == pytest.approx(0.05)
    assert type(factory.build_optimizer(rate)) is tf_lamb.tf_keras.LAMB


def test_a_choice_of_someone_else_knows_ours_too():
    with gin.unlock_config():  # a main that ran before in this process has locked it
        from official.projects.detr import optimization as detr

    config = detr.OptimizationConfig(SETTINGS)
    assert config.optimizer.get().beta_2 == 0.99
    assert config.optimizer.detr_adamw is not None


def test_a_choice_that_is_older_than_ours_knows_ours_where_it_is_copied():
    """Model Garden's pretraining experiments copy one that was made when they were imported."""
    old = optimization.OptimizationConfig()
    for choice in (old.optimizer, old.learning_rate, old.warmup):
        for key in [key for key in choice.__dict__ if key.startswith("tf_")]:
            del choice.__dict__[key]
    params = exp_factory.get_exp_config("bert/pretraining")
    params.trainer.optimizer_config = old
    params.override({"trainer": {"optimizer_config": SETTINGS}}, is_strict=True)
    assert params.trainer.optimizer_config.optimizer.get().beta_2 == 0.99


# Steps.


@pytest.mark.parametrize("traced", [True, False])
def test_a_step_moves_the_weights(records, traced):
    changes = {} if traced else optimizer(clipnorm=1.0, global_clipnorm=None)
    params = build(tiny(records, optimizer_config=changes))
    strategy = one_device()
    trainer = trainer_of(params, strategy, evaluate=True)
    with strategy.scope(), contextlib.nullcontext() if traced else uncompiled():
        trainer.train(tf.constant(1))  # the warmup begins at a learning rate of 0
        before = weights(trainer)
        logs = trainer.train(tf.constant(1))
        assert trainer.evaluate(tf.constant(1))["validation_loss"] > 0
    assert float(logs["training_loss"]) > 0
    assert not all(np.array_equal(a, b) for a, b in zip(before, weights(trainer), strict=True))
    assert trainer.optimizer.iterations == 2


@pytest.mark.parametrize("accumulation", [None, 2])
def test_float16_trains_with_a_dynamic_loss_scale(records, eager, accumulation):
    settings = tiny(records, optimizer_config=optimizer(gradient_accumulation_steps=accumulation))
    settings["runtime"] |= {"mixed_precision_dtype": "float16", "loss_scale": None}
    performance.set_mixed_precision_policy("float16")
    try:
        trainer = trainer_of(build(settings), one_device())
        trainer.optimizer._loss_scale.current_loss_scale.assign(2.0**30)  # overflows
        with trainer.strategy.scope():
            logs = trainer.train(tf.constant(3))
    finally:
        performance.set_mixed_precision_policy("float32")
    assert np.isfinite(logs["training_loss"])
    updates, skipped = step_of(trainer.optimizer), trainer.optimizer.inner_optimizer.skipped_steps
    assert updates + skipped == trainer.global_step.numpy() == 3
    assert skipped > 0
    assert float(trainer.optimizer.loss_scale) == 2.0 ** (30 - skipped)


def test_replicas_equal_one_device(records, eager):
    settings = tiny(records, optimizer_config=optimizer(epsilon=1e-3, global_clipnorm=0.5))
    alone, _ = train(build(settings), one_device(), 3)
    together, _ = train(build(settings), mirrored(2), 3)
    for a, b in zip(weights(alone), weights(together), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_the_heads_have_weights_before_the_first_step(records):
    # In it each replica is a thread, which draws from Python's own random numbers: no seed holds.
    names = {v.name for v in trainer_of(build(tiny(records)), mirrored(2)).model.weights}
    assert {"bert/next_sentence/logits/kernel:0", "bert/cls/predictions/output_bias/bias:0"} < names


# The order of the data.


@pytest.mark.parametrize(("replicas", "micro_batches"), [(1, 1), (2, 1), (1, 2)])
def test_a_resumed_run_goes_on_with_the_next_batch(records, tmp_path, replicas, micro_batches):
    config = optimizer(gradient_accumulation_steps=micro_batches)
    settings = tiny(records, optimizer_config=config)
    settings["task"]["train_data"] |= {"resume_in_order": True, "shuffle_buffer_size": 100}
    params = build(settings)
    data = params.task.train_data.replace(global_batch_size=BATCH // micro_batches)
    context = tf.distribute.InputContext(1, 0, replicas) if replicas > 1 else None

    def first(count):
        task = task_factory.get_task(params.task, logging_dir=str(tmp_path))
        dataset = task.build_inputs(data, context)
        return [batch["input_word_ids"].numpy() for batch in dataset.take(count)]

    fresh, step, parts = first(20), tf.Variable(7, dtype=tf.int64), replicas * micro_batches
    tf.train.CheckpointManager(
        tf.train.Checkpoint(global_step=step), str(tmp_path), max_to_keep=1
    ).save()
    assert checkpoints.steps_done(str(tmp_path)) == 7
    np.testing.assert_array_equal(first(3), fresh[7 * parts : 7 * parts + 3])
    assert len(fresh[0]) == BATCH // parts


# What is refused, before a step and before a file.


def refusal(settings, tmp_path, experiment=EXPERIMENT, text=""):
    """What the launcher would say."""
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(settings))
    flags = Flags(experiment, [str(config)], params_override=text)
    with pytest.raises(UserError) as error:
        params, _ = parsing.parse(flags)
        check_run(params, "train_and_eval", str(tmp_path / "model"), experiment)
    assert "\n" not in str(error.value) and not (tmp_path / "model").exists()
    return str(error.value)


EMA = "trainer.optimizer_config.ema.average_decay=0.9"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trainer.optimizer_config.optimizer.tf_lamb.weight_decya=1", "Did you mean weight_decay"),
        ("trainer.optimizer_config.optimizer.tf_lamb.weight_decay_rate=0.01",
         "Write trainer.optimizer_config.optimizer.tf_lamb.weight_decay=0.01"),
        ("trainer.optimizer_config.optimizer.tf_lars.eeta=0.01", "tf_lars.trust_coefficient=0.01"),
        ("trainer.optimizer_config.optimizer.tf_lamb.clip_grad_norm=true",
         "tf_lamb.clip_grad_norm. global_clipnorm must be a number in [0, inf), not True."),
        ("trainer.optimizer_config.ema.average_decy=0.9", "Did you mean average_decay"),
        ("task.model.cls_heads=3", "takes settings of its own"),
        ("{task: {model: {cls_heads: [{inner_dim: 8}, {iner_dim: 8}]}}}",
         "task.model.cls_heads[1].iner_dim. Did you mean inner_dim"),
        (f"{EMA},runtime.distribution_strategy='off'", "one_device"),
        (f"{EMA},runtime.mixed_precision_dtype=float16", "bfloat16"),
        ("runtime.mixed_precision_dtype=float16,task.scale_loss=false", "task.scale_loss=true"),
        ("{trainer: {optimizer_config: {learning_rate: {tf_lamb_polynomial: {steps: null}}}}}",
         "learning_rate.tf_lamb_polynomial.steps is not set"),
        ("task.train_data.input_path=nowhere/*.tfrecord", "does not match any files"),
        ("task.validation_data.input_path=nowhere", "there is no file nowhere"),
        ("task.train_data.input_path=''", "task.train_data.input_path is empty"),
        ("task.train_data.input_path=/dev/null", "/dev/null is empty"),
        ("{task: {train_data: {resume_in_order: true, seed: null}}}",
         "resume_in_order needs task.train_data.seed"),
        ("task.differential_privacy_config.clipping_norm=1.0", "is no part of tf_lamb. Leave it"),
        ("{trainer: {optimizer_config: {optimizer: {tf_lamb: {use_ema: true}}}}}",
         "tf_lamb: use_ema=true keeps averages that Model Garden never uses. Leave it out, and "
         "write trainer.optimizer_config.ema.average_decay=0.99"),
    ],
)  # fmt: skip
def test_a_bad_setting(records, tmp_path, text, expected):
    said = refusal(tiny(records), tmp_path, text=text)
    assert expected in said, said


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, "tf_lars has no weight_decay, exclude_from_weight_decay and global_clipnorm, but "
         "tf_lamb, which is not used, has weight_decay=0.01, exclude_from_"),
        ({"tf_lars": {"exclude_from_weight_decay": ["bias"]}}, "no weight_decay and global_clip"),
        ({"tf_lars": {"momentum": -1}, "tf_lamb": {
            "exclude_from_weight_decay": None, "global_clipnorm": None}}, "momentum must be"),
    ],
)  # fmt: skip
def test_a_change_of_type_leaves_nothing_behind(records, tmp_path, own, expected):
    """Lists and clippings were written for the other type; the new one would train without."""
    config = {"optimizer": {"type": "tf_lars", **own}}
    said = refusal(tiny(records, optimizer_config=config), tmp_path)
    assert expected in said, said


def test_nothing_decays_twice(tmp_path):
    """In the loss and in the optimizer, where it would also enter the norm of the gradient."""
    settings = {"task": {"losses": {"l2_weight_decay": 1e-4}}}
    said = refusal(settings, tmp_path, "lars/resnet_imagenet")
    assert "task.losses.l2_weight_decay=0.0001 decays in the loss" in said, said


@pytest.mark.slow
def test_the_stock_main_serves_too(records, tmp_path):
    config = tmp_path / "config.yaml"
    settings = tiny(records, train_steps=2, checkpoint_interval=2, validation_interval=2,
                    optimizer_config=optimizer(gradient_accumulation_steps=2,
                                               trust_ratios_every=1))  # fmt: skip
    settings["runtime"]["distribution_strategy"] = "off"
    config.write_text(yaml.safe_dump(settings))
    code, said = commands.run("official.nlp.train", [
        f"--experiment={EXPERIMENT}", f"--config_file={config}", "--mode=train_and_eval",
        f"--model_dir={tmp_path / 'model'}",
        "--gin_params=import tf_lamb.model_garden.registered",
    ])  # fmt: skip
    assert code == 0, said[-2000:]
    assert checkpoints.steps_done(str(tmp_path / "model")) == 2
    # Our trainer came along: a step is an update, not a micro-batch.
    (updates,) = [
        value
        for name, value in checkpoint(tmp_path / "model").items()
        if name.startswith("optimizer/iterations")
    ]
    assert updates == 2
    assert list((tmp_path / "model" / "trust_ratios").iterdir())  # and our runner
