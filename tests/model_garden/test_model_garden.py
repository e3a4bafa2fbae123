"""What a Model Garden user types, what it builds, and what it refuses."""

import contextlib
import dataclasses
import inspect
import shutil
import subprocess
import sys

import numpy as np
import pytest
import yaml

pytest.importorskip("official")

import tensorflow as tf
import tf_keras
from official.core import exp_factory, task_factory, train_utils
from official.modeling import hyperparams, optimization, performance
from official.modeling.optimization import optimizer_factory
from official.nlp.serving import export_savedmodel, serving_modules
from support import commands
from support.batch_flags import Flags
from support.clusters import mirrored
from support.frontends import uncompiled
from support.garden import (
    BATCH,
    EXPERIMENT,
    ROOT,
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
from tf_lamb import model_garden
from tf_lamb.api.variables import step_of
from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments import optimizers, parsing
from tf_lamb.model_garden.folders import checkpoints
from tf_lamb.model_garden.tasks import masked_lm

# Registration and configuration.


def test_importing_registers_nothing():
    code = "import sys, tf_lamb.model_garden; sys.exit('official' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_registration_may_be_repeated():
    model_garden.register()
    model_garden.register()
    assert issubclass(optimizer_factory.LEGACY_OPTIMIZERS_CLS["tf_lamb"], tf_lamb.tf_keras.LAMB)


@pytest.mark.parametrize("key", optimizers.OPTIMIZERS)
def test_the_fields_are_the_arguments_of_the_constructor(key):
    arguments = {
        name: parameter.default
        for name, parameter in inspect.signature(optimizers.OPTIMIZERS[key]).parameters.items()
    }
    del arguments["learning_rate"], arguments["loss_scale_factor"]  # which is Keras 3's
    config = getattr(optimization.OptimizerConfig(), key)
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    around = {name: fields.pop(name) for name in ("adascale", "measure_noise")}
    assert fields.pop("trust_ratios_every") is None
    assert fields.pop("divergence_report") is True
    assert fields.pop("weight_decay_schedule").type is None
    assert fields == arguments
    for name, wrapper in (("adascale", "AdaScale"), ("measure_noise", "MeasureNoise")):
        own = dataclasses.asdict(around[name])
        taken = inspect.signature(getattr(tf_lamb.tf_keras, wrapper)).parameters
        assert own.keys() - {"enabled", "base_steps"} == taken.keys() - {"inner", "name"}
        for argument in own.keys() & taken.keys() - {"scale"}:
            assert own[argument] == taken[argument].default, argument


def test_an_override_takes_our_keys_and_no_others(records):
    params = build(tiny(records, optimizer_config=optimizer(beta_2=0.99)))
    assert tf_lamb_of(params).beta_2 == 0.99
    assert tf_lamb_of(params).weight_decay == 0.01
    with pytest.raises(KeyError, match="weight_decya"):
        build(tiny(records, optimizer_config=optimizer(weight_decya=0.1)))


def test_the_saved_params_give_the_same_experiment(records, tmp_path):
    params = build(tiny(records, optimizer_config=optimizer(exclude_from_layer_adaptation=[])))
    train_utils.serialize_config(params, str(tmp_path))
    again = exp_factory.get_exp_config(EXPERIMENT)
    hyperparams.override_params_dict(again, str(tmp_path / "params.yaml"), is_strict=True)
    assert again.as_dict() == params.as_dict()
    assert type(again.task) is masked_lm.MaskedLMConfig
    assert tf_lamb_of(again).exclude_from_layer_adaptation == []


def test_the_experiment_has_the_numbers_of_the_paper():
    params = exp_factory.get_exp_config(EXPERIMENT)
    factory = optimization.OptimizerFactory(params.trainer.optimizer_config)
    rate = factory.build_learning_rate()
    assert params.task.train_data.global_batch_size == 512
    assert params.task.scale_loss
    np.testing.assert_allclose(rate(3125), 6.25e-4 * (1 - 3125 / 1e6), rtol=1e-6)
    np.testing.assert_allclose(rate(1_000_000), 0.0, atol=1e-12)
    assert type(factory.build_optimizer(rate)) is tf_lamb.tf_keras.LAMB


def test_stock_experiments_stay_as_they_are():
    params = exp_factory.get_exp_config("bert/pretraining")
    assert params.trainer.optimizer_config.optimizer.type == "adamw"
    assert not params.task.scale_loss


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


def test_ema_is_evaluated_and_swapped_back(records, eager):
    params = build(tiny(records, optimizer_config={"ema": {"average_decay": 0.9}}))
    strategy = one_device()
    trainer = trainer_of(params, strategy, evaluate=True)
    with strategy.scope():
        trainer.train(tf.constant(4))
        trained = weights(trainer)
        trainer.eval_begin()
        averaged = weights(trainer)
        trainer.eval_reduce()  # as after a batch
        trainer.eval_end()
    assert not all(np.array_equal(a, b) for a, b in zip(trained, averaged, strict=True))
    for a, b in zip(trained, weights(trainer), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_the_log_shows_the_learning_rate_of_the_next_step(records, eager):
    params = build(tiny(records))
    _, logs = train(params, one_device(), 7)
    config = params.trainer.optimizer_config
    rate = optimization.OptimizerFactory(config).build_learning_rate()
    np.testing.assert_allclose(logs["learning_rate"], rate(7), rtol=1e-6)


def _with_loss_scale(records, loss_scale, **lamb):
    settings = tiny(records, optimizer_config=optimizer(**lamb))
    settings["runtime"] |= {"mixed_precision_dtype": "float16", "loss_scale": loss_scale}
    return build(settings)


def test_the_loss_is_scaled_and_gradients_unscaled(records, eager, monkeypatch):
    host, scaled_losses = tf_keras.mixed_precision.LossScaleOptimizer, []
    # The policy stays float32, so that only the scale differs.
    unit, _ = train(_with_loss_scale(records, 1.0), one_device(), 3)
    trainer = trainer_of(_with_loss_scale(records, 1024.0), one_device())
    assert isinstance(trainer.optimizer, host)
    get_scaled_loss = type(trainer.optimizer).get_scaled_loss
    monkeypatch.setattr(
        type(trainer.optimizer),
        "get_scaled_loss",
        lambda self, loss: scaled_losses.append(loss) or get_scaled_loss(self, loss),
    )
    with trainer.strategy.scope():
        trainer.train(tf.constant(3))
    assert scaled_losses
    for a, b in zip(weights(unit), weights(trainer), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("accumulation", [None, 2])
def test_float16_trains_with_a_dynamic_loss_scale(records, eager, accumulation):
    params = _with_loss_scale(records, None, gradient_accumulation_steps=accumulation)
    performance.set_mixed_precision_policy("float16")
    try:
        trainer = trainer_of(params, one_device())
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


@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_replicas_equal_one_device(records, eager, replicas):
    settings = tiny(records, optimizer_config=optimizer(epsilon=1e-3, global_clipnorm=0.5))
    alone, _ = train(build(settings), one_device(), 3)
    together, _ = train(build(settings), mirrored(replicas), 3)
    for a, b in zip(weights(alone), weights(together), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_the_heads_have_weights_before_the_first_step(records):
    # In it each replica is a thread, which draws from Python's own random numbers: no seed holds.
    names = {v.name for v in trainer_of(build(tiny(records)), mirrored(2)).model.weights}
    assert {"bert/next_sentence/logits/kernel:0", "bert/cls/predictions/output_bias/bias:0"} < names


# The order of the data.


def _first_batches(params, model_dir, count, context=None):
    task = task_factory.get_task(params.task, logging_dir=str(model_dir))
    dataset = task.build_inputs(params.task.train_data, context)
    return [batch["input_word_ids"].numpy() for batch in dataset.take(count)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_resumed_run_goes_on_with_the_next_batch(records, tmp_path, replicas):
    settings = tiny(records)
    settings["task"]["train_data"] |= {"resume_in_order": True, "shuffle_buffer_size": 100}
    params = build(settings)
    context = tf.distribute.InputContext(1, 0, replicas) if replicas > 1 else None
    fresh = _first_batches(params, tmp_path, 20, context)
    step = tf.Variable(7, dtype=tf.int64)
    tf.train.CheckpointManager(
        tf.train.Checkpoint(global_step=step), str(tmp_path), max_to_keep=1
    ).save()
    assert checkpoints.steps_done(str(tmp_path)) == 7
    resumed = _first_batches(params, tmp_path, 3, context)
    np.testing.assert_array_equal(resumed, fresh[7 * replicas : 7 * replicas + 3])
    assert len(fresh[0]) == BATCH // replicas


# What is refused, before a step and before a file.


def _refusal(settings, tmp_path, experiment=EXPERIMENT, mode="train_and_eval", text=""):
    """What the launcher would say."""
    config = tmp_path / "config.yaml"
    config.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))
    flags = Flags(experiment, [str(config)], params_override=text)
    with pytest.raises(UserError) as error:
        check_run(parsing.parse(flags)[0], mode, str(tmp_path / "model"), experiment)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "model" / "params.yaml").exists()
    return str(error.value)


def test_an_unknown_experiment(records, tmp_path):
    said = _refusal(tiny(records), tmp_path, experiment="lamb/bert_pretrainig")
    assert "lamb/bert_pretrainig" in said and "Did you mean lamb/bert_pretraining" in said


def test_a_missing_yaml():
    flags = Flags(config_file=["no/such.yaml"])
    with pytest.raises(UserError, match="no/such.yaml: there is no such file"):
        parsing.parse(flags)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trainer.trian_steps=5", "no trainer.trian_steps. Did you mean train_steps"),
        (
            "trainer.optimizer_config.optimizer.tf_lamb.weight_decya=1",
            "Did you mean weight_decay",
        ),
        ("trainer.optimizer_config.optimizer.type=tf_lam", "'tf_lam' is not known. Did you mean"),
        ("trainer.optimizer_config.ema.average_decy=0.9", "Did you mean average_decay"),
        ("task.model.cls_heads=3", "takes settings of its own"),
        ("trainer=3", "trainer takes settings of its own"),
        ("trainer.train_steps=many", "train_steps takes a value such as 20"),
        ("trainer.train_steps=0", "trainer.train_steps is 0"),
        ("runtime.distribution_strategy=off", "in quotes: 'off'"),
        (
            "trainer.optimizer_config.ema.average_decay=0.9,runtime.distribution_strategy='off'",
            "one_device",
        ),
        (
            "trainer.optimizer_config.ema.average_decay=0.9,runtime.mixed_precision_dtype=float16",
            "bfloat16",
        ),
        ("runtime.mixed_precision_dtype=float16,task.scale_loss=false", "task.scale_loss=true"),
        (
            "{trainer: {optimizer_config: {learning_rate: {tf_lamb_polynomial: {steps: null}}}}}",
            "learning_rate.tf_lamb_polynomial.steps is not set",
        ),
        (
            "trainer.optimizer_config.optimizer.tf_lamb.weight_decay=-1",
            "weight_decay is -1, and it is a number of 0 or more",
        ),
        (
            "{trainer: {optimizer_config: {optimizer: {tf_lamb: {exclude_from_weight_decay: ["
            "'(']}}}}}",
            "which is not a regular expression",
        ),
        ("task.train_data.input_path=nowhere/*.tfrecord", "does not match any files"),
        ("task.validation_data.input_path=nowhere", "there is no file nowhere"),
        ("task.train_data.input_path=''", "task.train_data.input_path is empty"),
        (
            "{task: {train_data: {resume_in_order: true, seed: null}}}",
            "resume_in_order needs task.train_data.seed",
        ),
        ("task.differential_privacy_config.clipping_norm=1.0", "beside gradient_transformers"),
        (
            "{trainer: {optimizer_config: {optimizer: {tf_lamb: {use_ema: true}}}}}",
            "tf_lamb: use_ema=true keeps averages that Model Garden never uses. Leave it out, and "
            "write trainer.optimizer_config.ema.average_decay=0.99",
        ),
        ("just words", "--params_override"),
    ],
)
def test_a_bad_setting(records, tmp_path, text, expected):
    said = _refusal(tiny(records), tmp_path, text=text)
    assert expected in said, said


def test_averages_of_the_optimizer_may_overwrite_the_weights():
    built = optimizers.OPTIMIZERS["tf_lars"]
    config = optimization.OptimizationConfig({
        "optimizer": {"type": "tf_lars",
                      "tf_lars": {"use_ema": True, "ema_overwrite_frequency": 5}},
        "learning_rate": {"type": "constant"},
    })  # fmt: skip
    assert isinstance(optimization.OptimizerFactory(config).build_optimizer(0.1), built)


def _switched(kind, **settings):
    """Overrides that change the type of the optimizer, and what the two types hold."""
    prefix = "trainer.optimizer_config.optimizer"
    values = {"type": kind, **settings}
    return ",".join(f"{prefix}.{k.replace('__', '.')}={v}" for k, v in values.items())


FORGOTTEN = {"tf_lamb__exclude_from_weight_decay": "null", "tf_lamb__global_clipnorm": "null"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_switched("tf_lars"), "tf_lars has no exclude_from_weight_decay, but tf_lamb, which"),
        (_switched("tf_lars", tf_lars__exclude_from_weight_decay="[bias]"), "has no global_clip"),
        (_switched("tf_lars", tf_lars__momentum=-1, **FORGOTTEN), "momentum must be"),
    ],
)
def test_d14_a_change_of_type_leaves_nothing_behind(records, tmp_path, text, expected):
    """Lists and clippings were written for the other type; the new one would train without."""
    said = _refusal(tiny(records), tmp_path, text=text)
    assert expected in said, said


def test_d16_nothing_decays_twice(tmp_path):
    """In the loss and in the optimizer, where it would also enter the norm of the gradient."""
    said = _refusal(
        {"task": {"losses": {"l2_weight_decay": 1e-4}}}, tmp_path, "lars/resnet_imagenet"
    )
    assert "task.losses.l2_weight_decay=0.0001 decays in the loss" in said, said


@pytest.mark.parametrize("text", ["trainer: {train_steps: 5", "- 1\n- 2", ""])
def test_a_yaml_that_is_none(tmp_path, text):
    assert "config.yaml" in _refusal(text, tmp_path)


def test_a_list_of_settings_is_searched_too(records, tmp_path):
    settings = tiny(records)
    settings["task"]["model"]["cls_heads"] = [{"inner_dim": 8}, {"iner_dim": 8}]
    assert "task.model.cls_heads[1].iner_dim. Did you mean inner_dim" in _refusal(
        settings, tmp_path
    )


def test_an_empty_data_file(records, tmp_path):
    empty = tmp_path / "empty.tfrecord"
    empty.touch()
    said = _refusal(tiny(records), tmp_path, text=f"task.train_data.input_path={empty}")
    assert f"{empty} is empty" in said


def test_data_of_another_shape(records, tmp_path):
    copy = tmp_path / "copy.tfrecord"
    shutil.copyfile(records, copy)
    (tmp_path / "data.json").write_text('{"vocab_size": 51, "seq_length": 16}')
    said = _refusal(tiny(str(copy)), tmp_path)
    assert "vocab_size is 50" in said and "task.model.encoder.bert.vocab_size=51" in said
    (tmp_path / "data.json").write_text('{"seq_length": 32}')
    assert "task.train_data.seq_length=32" in _refusal(tiny(str(copy)), tmp_path)


def test_a_good_setting_is_not_refused(records, tmp_path):
    check_run(build(tiny(records)), "train_and_eval", str(tmp_path / "model"), EXPERIMENT)
    assert not (tmp_path / "model").exists()


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


def test_what_was_trained_can_be_exported(records):
    task = task_factory.get_task(build(tiny(records)).task)
    assert export_savedmodel.lookup_export_module(task) is serving_modules.MaskedLM
