"""A run of the Model Garden that diverges ends before it saves."""

import pytest
import tensorflow as tf
from support.garden import build, optimizer, run, tiny

from tf_lamb.model_garden.running.actions import Divergence
from tf_lamb.tf_keras import LAMB


def test_a_run_of_the_model_garden_ends_before_it_saves(records, tmp_path):
    config = optimizer(on_nonfinite="propagate", jit_compile=False)
    config["learning_rate"] = {
        "type": "stepwise",
        "stepwise": {"boundaries": [3], "values": [1e-3, float("inf")]},
    }
    config["warmup"] = {"type": None}
    settings = tiny(records, optimizer_config=config)
    settings["trainer"] |= {"train_steps": 8, "steps_per_loop": 2, "checkpoint_interval": 2}
    with pytest.raises(FloatingPointError, match="at step 6, the weights of"):
        run(build(settings), tmp_path, "train")
    latest = tf.train.latest_checkpoint(str(tmp_path))
    assert latest.endswith("ckpt-4")


def test_the_output_of_a_loop_shows_norms_and_spikes():
    watched = LAMB(on_spike=[8, 6.0], jit_compile=False)
    action, variable = Divergence(watched), tf.Variable(tf.ones(3))
    for length in (1.0, 1.1, 1.0, 1.1, 100.0):
        watched.apply_gradients([(tf.constant([0.0, length, 0.0]), variable)])
    action(output := {"training_loss": 1.0})
    shown = {"skipped_steps": 0, "spiked_steps": 1, "gradient_norm": 100.0}
    assert output == {"training_loss": 1.0, **shown}
