"""Model Garden's commands before they import it: their help, and what they refuse at once."""

import re
import shlex
import subprocess
import sys
import types

import pytest

pytest.importorskip("official")

import gin
import yaml
from official.core import exp_factory, registry
from support.batch_flags import Flags
from support.garden import ROOT, restore_after, tiny

from tf_lamb import model_garden
from tf_lamb.model_garden import sample_data, train
from tf_lamb.model_garden.checks import flags
from tf_lamb.model_garden.common import errors, yamls
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments import named, parsing

# Runs a command, and ends with a traceback if it has imported what takes seconds.
WITHOUT_TENSORFLOW = """
import runpy, sys
module, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
finally:
    assert not {"tensorflow", "tf_keras", "keras", "numpy"} & set(sys.modules)
"""


def run(command, *args):
    module = f"tf_lamb.model_garden.{command}"
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, module, *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_lists_the_flags_and_the_experiments_at_once():
    text = run("train", "--help").stdout
    for flag in ("experiment", "config_file", "mode", "model_dir", "params_override", "seed"):
        assert f"  --{flag}:" in text
    for name in train.OURS:
        assert re.search(rf"\s{name}\b", text)
    text = run("train_stages", "--help").stdout
    for flag in ("stage", "moments", "mode", "model_dir"):
        assert f"  --{flag}:" in text


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("train --experiment=bert/pretraining --mode=train --model_dir=x --config_file=/no.yaml",
         "train: --config_file=/no.yaml: there is no such file"),
        ("train_stages --mode=train --model_dir=x --stage=lamb/bert_pretraining "
         "--stage=lamb/bert_pretraining_phase2:/no.yaml",
         "train_stages: stage 2: --config_file=/no.yaml: there is no such file"),
        ("train_stages --mode=eval --model_dir=x --stage=lamb/bert_pretraining",
         "train_stages: --mode=eval: stages are trained"),
        ("train --experiment=bert/pretraining --mode=train", "--model_dir must have a value"),
        ("find --experiment=bert/pretraining", "one flag tells the steps at another batch: --runs"),
    ],
    ids=["file", "stage", "mode", "required", "find"],
)  # fmt: skip
def test_what_needs_no_experiment_is_refused_at_once(command, says):
    done = run(*shlex.split(command))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert says in " ".join((done.stdout + done.stderr).split())


RUN = "--experiment=bert/pretraining --model_dir=x --mode"


def said_at_once(command):
    """What a command says without TensorFlow, in one line."""
    done = run(*shlex.split(command))
    assert done.returncode == 1 and not done.stdout, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (f"train {RUN}=continuous_train_and_eval", "--mode=continuous_train_and_eval waits for"),
        (f"train {RUN}=train_and_validate", "--mode=train_and_validate is not implemented"),
        ("train_stages --mode=train_and_validate --model_dir=x --stage=lamb/bert_pretraining",
         "Take one that runs: train, eval, train_and_eval, continuous_eval, train_and_post_eval"),
        (f"train {RUN}=train --tpu_platform=v3", "--tpu_platform=v3 has no effect. Leave it out"),
        ("find --experiment=bert/pretraining --noise_scale=1 --mode=train",
         "--mode=train has no effect: nothing is trained here"),
    ],
)  # fmt: skip
def test_what_does_not_run_is_refused_at_once(command, says):
    assert says in said_at_once(command)


def test_help_lists_the_modes_that_run_and_no_flag_that_a_command_refuses():
    listed = {}
    for command in ("train", "train_stages", "find"):
        text = run(command, "--help").stdout
        listed[command] = set(re.findall(r"^  --(?:\[no\])?(\w+):", text, re.MULTILINE))
        shown = set(re.findall(r"\w+", text[text.index("--mode") :])) if "--mode" in text else set()
        assert "gin_params" in listed[command]
        if command != "find":
            assert set(flags.MODES) <= shown
        assert not {"continuous_train_and_eval", "train_and_validate"} & set(text.split("|"))
        assert "train_and_validate" not in text
    assert not {"experiment", "config_file"} & listed["train_stages"]
    assert not {"mode", "model_dir", "seed", "global_batch_size", "recipe"} & listed["find"]
    assert {"experiment", "config_file"} <= listed["train"] & listed["find"]


def test_our_experiments_are_those_that_we_register():
    registered = exp_factory._REGISTERED_CONFIGS
    factories = {name: registry.lookup(registered, name) for name in parsing.experiments()}
    ours = {name for name, factory in factories.items() if factory.__module__ == named.__name__}
    assert ours == set(train.OURS)
    assert {"bert/pretraining", "resnet_imagenet"} < factories.keys() - ours


def test_model_gardens_main_is_handed_what_the_command_has_parsed(records, tmp_path, monkeypatch):
    from official.nlp import train as main

    config, trained = tmp_path / "a.yaml", []
    config.write_text(yaml.safe_dump(tiny(records)))
    args = Flags(config_file=[str(config)], params_override="trainer.train_steps=3")
    vars(args).update(
        mode="train", model_dir=str(tmp_path / "model"), seed=None, gin_file=None, gin_params=None
    )

    def run_experiment(params, model_dir):
        trained.append(params)
        raise KeyboardInterrupt  # at the first step

    monkeypatch.setattr(train, "flags", types.SimpleNamespace(FLAGS=args))
    monkeypatch.setattr(main, "FLAGS", args)
    monkeypatch.setattr(main, "_run_experiment_with_preemption_recovery", run_experiment)
    restore_after(monkeypatch)
    with train.Console() as console:
        parsed = train.read(args)
        config.unlink()
        with pytest.raises(KeyboardInterrupt):
            train.run(console, parsed)
    (params,) = trained
    assert params is parsed and params.trainer.train_steps == 3


def test_what_an_optimizer_refuses_of_the_model_is_one_line_before_params_yaml(
    records, tmp_path, monkeypatch
):
    from official.nlp import train as main

    config, folder = tmp_path / "a.yaml", tmp_path / "model"
    clear = "exclude_from_weight_decay", "exclude_from_layer_adaptation", "global_clipnorm"
    soap = {"type": "tf_soap", "tf_lamb": dict.fromkeys(clear), "tf_soap": {"max_precond_dim": 2}}
    config.write_text(yaml.safe_dump(tiny(records, optimizer_config={"optimizer": soap})))
    args = Flags(config_file=[str(config)])
    vars(args).update(
        mode="train", model_dir=str(folder), seed=None, gin_file=None, gin_params=None,
        enable_async_checkpointing=False,
    )  # fmt: skip
    monkeypatch.setattr(train, "flags", types.SimpleNamespace(FLAGS=args))
    monkeypatch.setattr(main, "FLAGS", args)
    restore_after(monkeypatch)
    words = r"optimizer.tf_soap: SOAP keeps bases of up to max_precond_dim=2, .* or raise max_pre"
    # As in a process of its own: one that trained before has locked Gin.
    with (
        gin.unlock_config(),
        train.Console() as console,
        pytest.raises(UserError, match=words) as error,
    ):
        train.run(console, train.read(args))
    assert "\n" not in str(error.value) and not (folder / "params.yaml").exists()


# Config files.


def test_a_config_of_this_package_is_found_by_its_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ours = f"{ROOT}/model_garden_configs/bert_small_cpu.yaml"
    ((source, settings),) = yamls.read_files(["bert_small_cpu.yaml"])
    assert source == f"--config_file={ours}" and settings["trainer"]["train_steps"]
    # A file of that name that is here comes first.
    (tmp_path / "bert_small_cpu.yaml").write_text("trainer: {train_steps: 3}")
    assert yamls.found("bert_small_cpu.yaml") == "bert_small_cpu.yaml"
    assert yamls.found(ours) == ours
    for name, hint in (
        ("bert_smal_cpu.yaml", "Did you mean bert_small_cpu.yaml"),
        ("a/b.yaml", ""),
    ):
        with pytest.raises(UserError, match=f"{name}: there is no such file.*{hint}"):
            yamls.found(name)


# Without Model Garden.


@pytest.fixture
def no_model_garden(monkeypatch):
    monkeypatch.setitem(sys.modules, "official", None)


def test_without_model_garden_commands_say_the_pip_line(no_model_garden, tmp_path):
    line = r'needs the Model Garden, which this .* lacks: pip install "\.\[model-garden\]"'
    with pytest.raises(ModuleNotFoundError, match=line):
        model_garden.register()
    with pytest.raises(SystemExit, match=f"tf_lamb.model_garden.train: .*{line}"):
        errors.begin("train")
    with pytest.raises(ModuleNotFoundError, match=line):
        sample_data.write(tmp_path / "out")
    assert not (tmp_path / "out").exists()
