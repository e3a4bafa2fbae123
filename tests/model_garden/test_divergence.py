"""A run of the Model Garden that diverges ends before it saves."""

import pytest
import tensorflow as tf
from support.garden import build, optimizer, run, tiny


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
