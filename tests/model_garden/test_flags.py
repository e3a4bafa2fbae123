"""Flags without effect, strategies that cannot run, and imports that fail: one line."""

import re
import types

import pytest
import yaml

pytest.importorskip("official")

import gin
from support import commands
from support.garden import EXPERIMENT, build, tiny

from tf_lamb.model_garden import train
from tf_lamb.model_garden.checks import flags
from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common.errors import UserError, unknown
from tf_lamb.model_garden.common.yamls import merged

# What a run says of its place, and would not be followed.


SERVICE = {"tf_data_service_address": "grpc://there:5000"}
SWITCH = {"enable_tf_data_service": True}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"runtime": {"tpu": "local"}}, "--tpu=local has no effect, .* is one_device: .* Write "
         "runtime.distribution_strategy=tpu"),
        ({"runtime": {"distribution_strategy": "tpu"}}, "needs the name of the TPU. Write --tpu="),
        ({"runtime": {"worker_hosts": "a:1,b:1"}}, "runtime.worker_hosts=a:1,b:1 has no effect"),
        ({"runtime": {"task_index": 0}}, "runtime.task_index=0 has no effect"),
        ({"runtime": {"distribution_strategy": "parameter_server"}}, "cannot train here"),
        ({"task": {"train_data": SERVICE, "validation_data": SERVICE}},
         "--tf_data_service=grpc://there:5000 has no effect, .* task.train_data.enable_tf_data"),
        ({"task": {"train_data": SWITCH}}, "enable_tf_data_service has no effect without an addre"),
        ({"task": {"train_data": SERVICE | SWITCH, "validation_data": SERVICE}}, None),
        ({"runtime": {"tpu": ""}}, None),
    ],
)  # fmt: skip
def test_what_would_not_be_followed_is_refused(records, tmp_path, monkeypatch, change, words):
    for name in flags._NAMES_OF_A_TPU:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "model"
    params = build(merged(tiny(records), change))
    if words is None:
        check_run(params, "train", str(folder), EXPERIMENT)
        return
    with pytest.raises(UserError, match=words) as error:
        check_run(params, "train", str(folder), EXPERIMENT)
    assert "\n" not in str(error.value) and not folder.exists()


def test_a_tpu_that_is_not_there_is_one_line_and_leaves_no_folder(records, tmp_path):
    """By the whole command, whose TensorFlow looks for it."""
    config, folder = tmp_path / "run.yaml", tmp_path / "model"
    config.write_text(yaml.safe_dump(merged(tiny(records), {"runtime": {
        "distribution_strategy": "tpu"}})))  # fmt: skip
    code, said = commands.run("tf_lamb.model_garden.train", [
        f"--experiment={EXPERIMENT}", f"--config_file={config}", "--mode=train",
        f"--model_dir={folder}", "--tpu=local",
    ])  # fmt: skip
    assert code == 1 and "Traceback" not in said and not folder.exists()
    begin = "tf_lamb.model_garden.train: --tpu=local: TensorFlow reaches no TPU there ("
    assert [line for line in said.splitlines() if line.startswith(begin)]


# What an import registers.


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"gin_params": ["imprt os"]}, "--gin_params='imprt os' cannot be read: Couldn't parse"),
        ({"gin_params": ["import no_such_module"]}, "No module named 'no_such_module'"),
        ({"gin_params": ["no_such.thing = 3"]}, "No configurable matching 'no_such'"),
        ({"gin_file": ["/no/such.gin"]}, "--gin_file='/no/such.gin' cannot be read: Unable to op"),
    ],
)
def test_gin_that_cannot_be_read_is_one_line(monkeypatch, given, words):
    args = types.SimpleNamespace(**{"gin_file": None, "gin_params": None, **given})
    monkeypatch.setattr(train, "flags", types.SimpleNamespace(FLAGS=args))
    # As in a process of its own: one that trained before has locked Gin.
    with gin.unlock_config(), pytest.raises(UserError, match=re.escape(words)) as error:
        train.register()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("place", "name", "known", "extra"),
    [
        ("trainer.optimizer_config.learning_rate.type", "tf_lamb_auto_warmup",
         "tf_lamb_multi_step", "automatic_warmup"),
        ("--experiment", "lars/resnet_imagenet_conadv", "lars/resnet_imagenet", "adversarial"),
    ],
    ids=["a learning rate", "an experiment"],
)  # fmt: skip
def test_a_name_that_an_extra_registers_is_refused_with_its_import(place, name, known, extra):
    words = f"add --gin_params='import tf_lamb_extras.{extra}.model_garden'"
    assert f"registered by an import: {words}" in unknown(place, name, [known])


@pytest.mark.parametrize("name", ["topology", "lars/resnet", "KEY"])
def test_of_a_name_that_no_extra_registers_no_import_is_told(name):
    assert "import" not in unknown("--experiment", name, ["lars/resnet_imagenet"])
