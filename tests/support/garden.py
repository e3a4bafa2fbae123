"""What the tests of Model Garden share: a BERT and a ResNet that take no time, and their data."""

import functools
import pathlib
import re

import numpy as np
import orbit
import tensorflow as tf
import tf_keras
from official.common import distribute_utils
from official.core import exp_factory, task_factory, train_lib, train_utils
from official.modeling import hyperparams
from official.modeling.hyperparams import base_config
from support.clusters import mirrored

from tf_lamb import model_garden
from tf_lamb.model_garden.folders import checkpoints
from tf_lamb.model_garden.running import runner

model_garden.register()
# Of a class they are always the same, and each of a config's thousands of fields asks for them.
base_config.Config._get_annotations = classmethod(
    functools.cache(base_config.Config._get_annotations.__func__)
)

EXPERIMENT = "lamb/bert_pretraining"
ROOT = str(pathlib.Path(__file__).parents[2])
EXAMPLES, LENGTH, MASKED, VOCABULARY, BATCH = 64, 16, 4, 50, 8


def written(folder, examples):
    """The path of a file of examples, each of them name -> whole numbers, fractions or bytes."""
    path = str(folder / "some.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for values in examples:
            example = tf.train.Example()
            for name, value in values.items():
                lists = {bytes: "bytes_list", float: "float_list"}
                kind = lists.get(type(value[0]), "int64_list")
                getattr(example.features.feature[name], kind).value.extend(value)
            writer.write(example.SerializeToString())
    return path


def write_records(folder):
    random = np.random.default_rng(1)
    return written(folder, [
        {
            "input_word_ids": random.integers(5, VOCABULARY, LENGTH),
            "input_type_ids": [0] * LENGTH,
            "input_mask": [1] * LENGTH,
            "masked_lm_positions": random.choice(LENGTH, MASKED, replace=False),
            "masked_lm_ids": random.integers(5, VOCABULARY, MASKED),
            "masked_lm_weights": [1.0] * MASKED,
            "next_sentence_labels": random.integers(0, 2, 1),
        }
        for _ in range(EXAMPLES)
    ])  # fmt: skip


def write_sentences(folder):
    """For `bert/sentence_prediction`."""
    random = np.random.default_rng(1)
    return written(folder, [
        {
            "input_ids": random.integers(5, VOCABULARY, LENGTH), "segment_ids": [0] * LENGTH,
            "input_mask": [1] * LENGTH, "label_ids": [label],
        }
        for label in random.integers(2, size=EXAMPLES)
    ])  # fmt: skip


def tiny(records, **trainer):
    """Settings that make the experiment so small that a step takes no time."""
    data = {
        "input_path": records, "global_batch_size": BATCH, "seq_length": LENGTH,
        "max_predictions_per_seq": MASKED, "use_v2_feature_names": True, "seed": 1,
    }  # fmt: skip
    encoder = {
        "vocab_size": VOCABULARY, "num_layers": 1, "hidden_size": 8, "num_attention_heads": 2,
        "intermediate_size": 16, "max_position_embeddings": LENGTH, "dropout_rate": 0.0,
        "attention_dropout_rate": 0.0,
    }  # fmt: skip
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


def write_pictures(folder):
    random = np.random.default_rng(1)
    return written(folder, [
        {
            "image/encoded": [
                tf.io.encode_jpeg(random.integers(0, 255, (32, 32, 3), np.uint8)).numpy()
            ],
            "image/class/label": [label],
        }
        for label in random.integers(10, size=16)
    ])  # fmt: skip


def tiny_resnet(pictures, ghost_batch_size=None, experiment="lars/resnet_imagenet"):
    """The experiment, so small that a step takes no time."""
    data = {"input_path": pictures, "global_batch_size": 8, "seed": 1, "aug_crop": False}
    backbone = {"type": "resnet", "resnet": {"model_id": 10, "depth_multiplier": 0.125}}
    return build(
        {
            "runtime": {"distribution_strategy": "one_device"},
            "task": {
                "ghost_batch_size": ghost_batch_size,
                "model": {"num_classes": 10, "input_size": [32, 32, 3], "backbone": backbone},
                "train_data": data,
                "validation_data": data,
            },
            "trainer": {"train_steps": 2, "steps_per_loop": 1,
                        "optimizer_config": {"warmup": {"tf_lamb": {"steps": 1}},
                                             "optimizer": {"tf_lars": {"jit_compile": False}}}},
        },
        experiment,
    )  # fmt: skip


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
    return mirrored(1)


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


def run(params, model_dir, mode="train_and_eval", strategy=None, **more):
    """What `tf_lamb.model_garden.train` runs with a folder, in this process."""
    strategy, model_dir = strategy or one_device(), str(model_dir)
    checkpoints.repair(model_dir)
    with strategy.scope():
        tf_keras.utils.set_random_seed(1)
        task = task_factory.get_task(params.task, logging_dir=model_dir)
    one = runner.Runner(strategy, task, mode, params, model_dir, **more)
    one.run()
    return one


def restore_after(monkeypatch):
    """What `runner.install` replaces, in a test that has a command call it."""
    for owner, name in (
        (train_utils, "serialize_config"), (train_utils, "parse_configuration"),
        (train_lib, "OrbitExperimentRunner"), (orbit.controller, "_log"),
        (runner.Runner, "console"), (runner.Runner, "evaluated"), (runner.Runner, "before"),
        (runner.Runner, "writes_params"),
        (distribute_utils, "get_distribution_strategy"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))


def checkpoint(model_dir):
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(model_dir)))
    names = [n for n in reader.get_variable_to_shape_map() if n.endswith("VARIABLE_VALUE")]
    return {name: reader.get_tensor(name) for name in names if "save_counter" not in name}


def assert_same_bits(one, other):
    """Of two folders, all that their last checkpoints hold, the optimizer's state included."""
    expected, got = checkpoint(one), checkpoint(other)
    assert expected.keys() == got.keys()
    assert not [n for n in expected if expected[n].tobytes() != got[n].tobytes()]
    assert any(re.match(r"optimizer/\w+:\d+/", name) for name in expected)  # a slot
