"""What the tests of door 3 share: a BERT that takes no time, its data, and the commands."""

import os
import pathlib
import subprocess

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from official.core import exp_factory, task_factory, train_utils
from official.modeling import hyperparams

from tf_lamb import model_garden
from tf_lamb.model_garden import runner

model_garden.register()

EXPERIMENT = "lamb/bert_pretraining"
ROOT = str(pathlib.Path(__file__).parents[2])
EXAMPLES, LENGTH, MASKED, VOCABULARY, BATCH = 64, 16, 4, 50, 8


def example(random):
    def ints(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    features = {
        "input_word_ids": ints(random.integers(5, VOCABULARY, LENGTH)),
        "input_type_ids": ints([0] * LENGTH),
        "input_mask": ints([1] * LENGTH),
        "masked_lm_positions": ints(random.choice(LENGTH, MASKED, replace=False)),
        "masked_lm_ids": ints(random.integers(5, VOCABULARY, MASKED)),
        "masked_lm_weights": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0] * MASKED)),
        "next_sentence_labels": ints(random.integers(0, 2, 1)),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write_records(folder):
    path = str(folder / "some.tfrecord")
    random = np.random.default_rng(1)
    with tf.io.TFRecordWriter(path) as writer:
        for _ in range(EXAMPLES):
            writer.write(example(random))
    return path


def tiny(records, **trainer):
    """Settings that make the experiment so small that a step takes no time."""
    data = {
        "input_path": records,
        "global_batch_size": BATCH,
        "seq_length": LENGTH,
        "max_predictions_per_seq": MASKED,
        "use_v2_feature_names": True,
        "seed": 1,
    }
    encoder = {
        "vocab_size": VOCABULARY,
        "num_layers": 1,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": LENGTH,
        "dropout_rate": 0.0,
        "attention_dropout_rate": 0.0,
    }
    head = {"inner_dim": 8, "num_classes": 2, "dropout_rate": 0.0, "name": "next_sentence"}
    settings = {
        "runtime": {"distribution_strategy": "one_device"},
        "task": {
            "model": {"encoder": {"type": "bert", "bert": encoder}, "cls_heads": [head]},
            "train_data": data,
            "validation_data": dict(data),
        },
        "trainer": {
            "train_steps": 20,
            "steps_per_loop": 1,
            "optimizer_config": {
                "learning_rate": {
                    "tf_lamb_polynomial": {"initial_learning_rate": 0.01, "steps": 20}
                },
                "warmup": {"tf_lamb": {"steps": 2}},
            },
        },
    }
    hyperparams.override_params_dict(
        merged := hyperparams.params_dict.ParamsDict(settings), {"trainer": trainer}, False
    )
    return merged.as_dict()


def optimizer(**fields):
    return {"optimizer": {"tf_lamb": fields}}


def build(settings, experiment=EXPERIMENT):
    params = exp_factory.get_exp_config(experiment)
    params.override(settings, is_strict=True)
    return params


def trainer_of(params, strategy, model_dir="", evaluate=False):
    with strategy.scope():
        tf_keras.utils.set_random_seed(1)
        task = task_factory.get_task(params.task, logging_dir=model_dir)
        return train_utils.create_trainer(params, task, train=True, evaluate=evaluate)


def one_device():
    return tf.distribute.OneDeviceStrategy("CPU:0")


def mirrored(replicas):
    if len(tf.config.list_logical_devices("CPU")) < replicas:
        pytest.skip(f"tests/conftest.py did not configure {replicas} logical devices")
    # Not by collectives: TensorFlow gives those of two strategies in one process the same key.
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def train(params, strategy, steps, **kwargs):
    """The trainer after so many steps, and its last logs."""
    trainer = trainer_of(params, strategy, **kwargs)
    with strategy.scope():
        logs = trainer.train(tf.constant(steps))
    return trainer, {key: np.asarray(value) for key, value in logs.items()}


def weights(trainer):
    return [np.array(w) for w in trainer.model.get_weights()]


def tf_lamb_of(settings_or_params):
    return settings_or_params.trainer.optimizer_config.optimizer.tf_lamb


def run(params, model_dir, mode="train_and_eval"):
    """What `tf_lamb.model_garden.train` runs, in this process."""
    strategy = one_device()
    with strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=str(model_dir))
    one = runner.Runner(strategy, task, mode, params, str(model_dir))
    one.run()
    return one


def environment():
    path = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}


def run_command(command):
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )


def checkpoint(model_dir):
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir)))
    names = [n for n in reader.get_variable_to_shape_map() if n.endswith("VARIABLE_VALUE")]
    return {name: reader.get_tensor(name) for name in names if "save_counter" not in name}
