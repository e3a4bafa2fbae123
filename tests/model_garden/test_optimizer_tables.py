"""Our entries in Model Garden's tables of optimizers, used as Model Garden's own tests use them."""

from fractions import Fraction

import pytest

pytest.importorskip("official")

import numpy as np
import tensorflow as tf
import tf_keras
from official.core import base_task, exp_factory
from official.modeling import optimization
from official.modeling.optimization import optimizer_factory
from official.modeling.privacy import configs as privacy
from support.garden import build, tiny

import tf_lamb.tf_keras
from tf_lamb.model_garden.checks import experiment as experiment_checks
from tf_lamb.model_garden.checks.experiment import check_optimizer
from tf_lamb.model_garden.common import seams
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments import recipes

KEYS = {
    "tf_lamb": "LAMB",
    "tf_lans": "LANS",
    "tf_lars": "LARS",
    "tf_muon": "Muon",
    "tf_soap": "SOAP",
    "tf_adamp": "AdamP",
    "tf_sgdp": "SGDP",
}
CONSTANT = {"type": "constant", "constant": {"learning_rate": 0.1}}


def built(key, settings=None, **kwargs):
    config = optimization.OptimizationConfig(
        {"optimizer": {"type": key, key: settings or {}}, "learning_rate": CONSTANT}
    )
    return optimization.OptimizerFactory(config).build_optimizer(0.1, **kwargs)


def is_as_model_gardens(key, cls):
    for table in seams.OPTIMIZERS:
        entry = table[key]
        expected = entry().get_config()
        expected["learning_rate"] = pytest.approx(0.1)
        optimizer = built(
            key, use_legacy_optimizer=table is optimizer_factory.LEGACY_OPTIMIZERS_CLS
        )
        assert isinstance(optimizer, entry) and issubclass(entry, cls) and type(optimizer) is cls
        assert optimizer.get_config() == expected
        assert entry.from_config(optimizer.get_config()).get_config() == expected


@pytest.mark.parametrize("key", KEYS)
def test_an_entry_is_a_class(key):
    is_as_model_gardens(key, getattr(tf_lamb.tf_keras, KEYS[key]))
    assert not isinstance(built("adam"), optimizer_factory.LEGACY_OPTIMIZERS_CLS[key])


@pytest.mark.parametrize("key", KEYS)
def test_an_option_is_a_setting(key):
    options = {"treatments": {"^transformer/layer_0/": {"rate": 0.5}, "embeddings": {"rate": 0.0}}}
    assert options.items() <= built(key, options).get_config().items()


def test_settings_of_before_go_on():
    config = built("tf_lamb", {"slot_dtype": "bfloat16", "layer_groups": ["a"]}).get_config()
    assert config["dtypes"]["slots"] == "bfloat16"
    assert config["treatments"] == {"a": {"join": True}}


@pytest.mark.parametrize("kind", ["polynomial", "tf_lamb_polynomial"])
def test_weight_decay_follows_a_schedule_as_the_rate_does(kind):
    steps = "steps" if kind.startswith("tf_lamb") else "decay_steps"
    falling = {"initial_learning_rate": 0.1, steps: 4, "end_learning_rate": 0.0}
    optimizer = built("tf_lamb", {"weight_decay_schedule": {"type": kind, kind: falling}})
    decay = [float(optimizer.weight_decay(step)) for step in (0, 2, 4)]
    np.testing.assert_allclose(decay, [0.1, 0.05, 0.0], atol=1e-8)
    both = {"weight_decay": 0.1, "weight_decay_schedule": {"type": kind, kind: falling}}
    with pytest.raises(
        ValueError, match="takes the place of weight_decay, which is 0.1, by you or"
    ):
        built("tf_lamb", both)


def test_a_check_before_training_takes_a_weight_decay_schedule(records):
    def checked(kind, **schedule):
        own = {"weight_decay": 0.0, "weight_decay_schedule": {"type": kind, kind: schedule}}
        params = build(tiny(records, optimizer_config={"optimizer": {"tf_lamb": own}}))
        check_optimizer(params)

    checked("tf_lamb_polynomial", initial_learning_rate=0.1, steps=4)
    with pytest.raises(UserError, match="steps is 0. Set a whole number of 1"):
        checked("tf_lamb_polynomial", initial_learning_rate=0.1, steps=0)
    with pytest.raises(UserError, match="type=constant is no schedule. Write a number as weight"):
        checked("constant", learning_rate=0.1)


def test_a_recipe_stretches_it_and_decay_in_the_loss_is_refused_beside_it():
    falling = {"boundaries": [100, 300], "values": [0.1, 0.05, 0.0]}
    schedule = {"type": "stepwise", "stepwise": falling}
    params = exp_factory.get_exp_config("lamb/resnet_imagenet")
    config = params.trainer.optimizer_config
    config.optimizer.override(
        {"type": "tf_lamb", "tf_lamb": {"weight_decay": 0.0, "weight_decay_schedule": schedule}}
    )
    (found,) = recipes._other_steps(config, Fraction(1, 4))
    place = ("optimizer", "tf_lamb", "weight_decay_schedule", "stepwise", "boundaries")
    assert found == (place, [25, 75])
    params.task.losses.l2_weight_decay = 1e-4
    with pytest.raises(UserError, match=r"tf_lamb.weight_decay_schedule.type=stepwise decays too"):
        experiment_checks._check_decay(params)


def test_gradients_are_summed_and_changed_by_the_arguments():
    """Legacy's order: the aggregator, then each transformer, whoever sums the gradients."""
    calls = []

    def summed(pairs):
        calls.append("sum")
        return [(2.0 * g, v) for g, v in pairs]

    def first(pairs):
        calls.append("first")
        return [(g + 1.0, v) for g, v in pairs]

    def second(pairs):
        calls.append("second")
        return [(tf.zeros_like(g), v) for g, v in pairs]

    told = built("tf_lamb", gradient_aggregator=summed, gradient_transformers=[first, second])
    v, idle = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    told.apply_gradients([(tf.constant([1.0, 1.0]), v), (None, idle)])
    assert calls == ["sum", "first", "second"]
    np.testing.assert_array_equal(v.numpy(), [1.0, 2.0])
    calls.clear()
    told.apply_gradients([(tf.constant([1.0, 1.0]), v)], skip_gradients_aggregation=True)
    assert calls == ["first", "second"]
    only = built(
        "tf_lamb", gradient_aggregator=lambda pairs: [(tf.zeros_like(g), v) for g, v in pairs]
    )
    only.apply_gradients([(tf.constant([1.0, 1.0]), v)])
    np.testing.assert_array_equal(v.numpy(), [1.0, 2.0])
    assert only.iterations == 1


def test_clipping_and_transformers_are_one_too_many():
    config = optimization.OptimizationConfig(
        {"optimizer": {"type": "tf_lamb", "tf_lamb": {"clipnorm": 1.0}}, "learning_rate": CONSTANT}
    )
    with pytest.raises(ValueError, match="beside gradient_transformers"):
        optimization.OptimizerFactory(config).build_optimizer(0.1, gradient_transformers=[tuple])


def test_differential_privacy_trains_with_ours():
    config = optimization.OptimizationConfig(
        {"optimizer": {"type": "tf_lamb"}, "learning_rate": CONSTANT}
    )
    noisy = privacy.DifferentialPrivacyConfig({"clipping_norm": 1.0, "noise_multiplier": 1.0})
    v = tf.Variable([1.0, 2.0])
    optimizer = base_task.Task.create_optimizer(config, dp_config=noisy)
    before = v.numpy()
    optimizer.apply_gradients([(tf.zeros(2), v)])
    assert np.any(v.numpy() != before)  # noise is all that moves it

    params = exp_factory.get_exp_config("lamb/bert_pretraining")
    params.task.differential_privacy_config = noisy
    with pytest.raises(UserError, match="beside gradient_transformers"):
        check_optimizer(params)
    params.trainer.optimizer_config.optimizer.tf_lamb.global_clipnorm = None
    check_optimizer(params)
    params.trainer.optimizer_config.optimizer.tf_lamb.gradient_accumulation_steps = 2
    with pytest.raises(UserError, match="once an update"):
        check_optimizer(params)


def test_loss_scaling_stands_around_it():
    calls = []
    inner = built("tf_lamb", gradient_transformers=[lambda pairs: calls.append(1) or pairs])
    scaled = tf_keras.mixed_precision.LossScaleOptimizer(inner)
    v = tf.Variable([1.0, 2.0])
    scaled.apply_gradients([(tf.constant([1.0, 1.0]), v)])
    assert calls
