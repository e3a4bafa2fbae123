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
    shown = " ".join(text.split())
    assert "--config_file: A YAML file, or the name of one that comes with this package" in shown
    assert "".join(str(yamls.shipped_folder()).split()) in "".join(text.split())
    shown = ("experiment", "config_file", "mode", "model_dir", "params_override", "seed")
    assert [flag for flag in shown if f"  --{flag}:" not in text] == []
    assert [name for name in train.OURS if not re.search(rf"\s{name}\b", text)] == []


def test_help_lists_the_flags_of_stages_at_once():
    text = run("train_stages", "--help").stdout
    shown = ("stage", "moments", "mode", "model_dir")
    assert [flag for flag in shown if f"  --{flag}:" not in text] == []


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
        (f"train {RUN}=train --learning_rate=0.1",
         "train: there is no flag --learning_rate. Write --params_override=trainer.optimizer_config"
         ".learning_rate.polynomial.initial_learning_rate=0.1, with the type of the experiment if"),
        (f"train {RUN}=train --weight_decay 0.1",
         "--params_override=trainer.optimizer_config.optimizer.tf_lamb.weight_decay=0.1, with the"),
        (f"train {RUN}=train --optimizer_type=lamb",
         "Write --params_override=trainer.optimizer_config.optimizer.type=tf_lamb"),
        (f"train {RUN}=train --batch_size=32",
         "there is no flag --batch_size. Write --params_override=task.train_data.global_batch_size="
         "32, or --global_batch_size=32, which also changes the rate and the steps"),
        ("find --experiment=bert/pretraining --train_steps=9",
         "find: there is no flag --train_steps. Write --params_override=trainer.train_steps=9"),
        ("train_stages --mode=train --model_dir=x --stage=lamb/bert_pretraining --lr",
         "train_stages: there is no flag --lr. Write --params_override=trainer.optimizer_config"),
    ],
)  # fmt: skip
def test_what_does_not_run_is_refused_at_once(command, says):
    assert says in said_at_once(command)


@pytest.mark.parametrize(
    ("command", "taken", "refused"),
    [
        ("train", {"experiment", "config_file"}, set()),
        ("train_stages", set(), {"experiment", "config_file"}),
        (
            "find",
            {"experiment", "config_file"},
            {"mode", "model_dir", "seed", "global_batch_size", "recipe"},
        ),
    ],
    ids=["train", "train_stages", "find"],
)
def test_help_lists_the_modes_that_run_and_no_flag_that_a_command_refuses(command, taken, refused):
    text = run(command, "--help").stdout
    listed = set(re.findall(r"^  --(?:\[no\])?(\w+):", text, re.MULTILINE))
    shown = set(re.findall(r"\w+", text[text.index("--mode") :])) if "--mode" in text else set()
    assert "gin_params" in listed
    if command != "find":
        assert set(flags.MODES) <= shown
    assert not {"continuous_train_and_eval", "train_and_validate"} & set(text.split("|"))
    assert "train_and_validate" not in text
    assert taken <= listed and not refused & listed


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


SMALL = "bert_small_cpu.yaml"


def test_a_config_of_this_package_is_found_by_its_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ours = f"{ROOT}/model_garden_configs/{SMALL}"
    ((source, settings),) = yamls.read_files([SMALL])
    assert source == f"--config_file={ours}" and settings["trainer"]["train_steps"]
    assert yamls.found(ours) == ours


def test_a_config_of_that_name_that_is_here_comes_first(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / SMALL).write_text("trainer: {train_steps: 3}")
    assert yamls.found(SMALL) == SMALL
    ours = f"{ROOT}/model_garden_configs/{SMALL}"
    assert yamls.found(ours) == ours


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("bert_smal_cpu.yaml", f"Did you mean {SMALL}"),
        ("a/b.yaml", "$"),
        (f"model_garden_configs/{SMALL}", f"Pass the bare name, {SMALL}$"),
    ],
    ids=["misspelt", "nowhere", "in the folder of a clone"],
)
def test_a_config_that_is_not_there_is_refused(name, hint, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"{name}: there is no such file.*{hint}"):
        yamls.found(name)


# Without Model Garden.


@pytest.fixture
def no_model_garden(monkeypatch):
    monkeypatch.setitem(sys.modules, "official", None)


PIP_LINE = (
    r"needs the Model Garden.*, which this .* lacks: pip install tf-models-official==2\.20\.0 "
)


def test_without_model_garden_its_registration_says_the_pip_line(no_model_garden):
    with pytest.raises(ModuleNotFoundError, match=PIP_LINE):
        model_garden.register()


def test_without_model_garden_commands_say_the_pip_line(no_model_garden):
    with pytest.raises(SystemExit, match=f"tf_lamb.model_garden.train: .*{PIP_LINE}"):
        errors.begin("train")


COMMANDS = [
    f"tf_lamb.model_garden.{name}" for name in ("train", "train_stages", "find", "export", "report")
]


@pytest.mark.parametrize("module", [*COMMANDS, "tf_lamb_extras.preflight.model_garden"])
def test_without_model_garden_help_is_one_line(module):
    """Nor is `yaml` there, which it brings."""
    code = "import runpy, sys\n"
    code += "sys.modules |= dict.fromkeys(['official', 'yaml', 'gin', 'orbit', 'tf_keras'])\n"
    code += f"sys.argv[1:] = ['--help']; runpy.run_module({module!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert re.match(rf"{re.escape(module)}: tf_lamb.model_garden {PIP_LINE}", done.stderr)


def test_without_model_garden_no_data_are_written(no_model_garden, tmp_path):
    with pytest.raises(ModuleNotFoundError, match=PIP_LINE):
        sample_data.write(tmp_path / "out")
    assert not (tmp_path / "out").exists()
