"""Every file in `model_garden_configs`: its arithmetic, its recipe, and one step of it."""

import os
import re

import numpy as np
import pytest

pytest.importorskip("official")

from official.core import exp_factory
from official.modeling.optimization import OptimizerFactory
from official.nlp.tasks import masked_lm
from support.batch_flags import Flags
from support.configs import YAMLS, experiment_of, header, parsed
from support.frontends import uncompiled
from support.garden import one_device, tiny, train

from tf_lamb.core import recipes
from tf_lamb.core.recipes.published import IMAGENET
from tf_lamb.core.recipes.scaling import epochs_to_steps
from tf_lamb.model_garden.checks.experiment import check_batch, check_optimizer
from tf_lamb.model_garden.experiments import parsing
from tf_lamb.model_garden.experiments.recipes import settings_of_recipe
from tf_lamb.model_garden.train import OURS

# What a file is the recipe of; the small ones are tuned by hand.
RECIPES = {
    "bert_large_512_tpu": recipes.published("untuned_lamb_bert", 512),
    "bert_large_4k_tpu": recipes.published("untuned_lamb_bert", 4096),
    "bert_large_32k_tpu": recipes.published("untuned_lamb_bert", 32768),
    "bert_large_32k_8gpu": recipes.published("untuned_lamb_bert", 32768),
    "bert_large_64k_32k_stage1_tpu": recipes.published("bert_mixed_batch").stages[0],
    "bert_large_64k_32k_stage2_tpu": recipes.published("bert_mixed_batch").stages[1],
    "resnet50_lamb_8k_tpu": recipes.published("untuned_lamb_resnet50", 8192),
    "resnet50_lamb_32k_tpu": recipes.published("untuned_lamb_resnet50", 32768),
    "resnet50_lars_8k_tpu": recipes.published("legw_resnet50_lars", 8192),
    "resnet50_lars_32k_tpu": recipes.published("legw_resnet50_lars", 32768),
    "resnet50_lars_8k_8gpu": recipes.published("legw_resnet50_lars", 8192),
}


def counts(text) -> int:
    return int(text.replace(",", ""))


each_file = pytest.mark.parametrize("path", YAMLS.values(), ids=list(YAMLS))


def test_the_issue_of_files_is_complete():
    assert {f"{name}.yaml" for name in RECIPES} < set(YAMLS)
    assert {experiment_of(path) for path in YAMLS.values()} == {
        *OURS,
        "lars/resnet_imagenet_conadv",
    }


@each_file
def test_the_header_counts_right(path):
    params, text = parsed(path), header(path)
    number = r"([\d,]+)"
    batch = re.search(
        rf"{number} examples x {number} replicas? x {number} micro-batch(?:es)? = {number} ", text
    )
    share, replicas, micro, total = (int(n.replace(",", "")) for n in batch.groups())
    assert share * replicas * micro == total == params.task.train_data.global_batch_size
    optimizer = params.trainer.optimizer_config.optimizer.get()
    assert (optimizer.gradient_accumulation_steps or 1) == micro
    runtime = params.runtime
    if runtime.distribution_strategy == "mirrored":
        assert runtime.num_gpus == replicas
    steps = re.search(rf"{number} steps x {number} = {number} examples", text)
    steps, again, examples = (int(n.replace(",", "")) for n in steps.groups())
    assert again == total
    assert steps == params.trainer.train_steps
    assert steps * total == examples
    assert re.search(rf"[=:]{re.escape(os.path.basename(path))}\b", text) or "stage1" in text
    assert "model_garden_configs/" not in text  # a wheel has the files elsewhere
    if chips := re.search(r"v3-(\d+) \((\d+)x(\d+) chips", text):
        cores, width, height = map(int, chips.groups())
        assert cores == 2 * width * height == replicas
    assert params.task.validation_data.global_batch_size % replicas == 0
    if passes := re.search(rf"([\d.]+) passes over {number}", text):
        shown, whole = passes[1], int(passes[2].replace(",", ""))
        assert f"{examples / whole:.{len(shown.partition('.')[2])}f}" == shown


def peak(params):
    """The largest rate of training, as Model Garden builds it."""
    config = params.trainer.optimizer_config
    warmup = config.warmup.get()
    ends = getattr(warmup, "steps", None) or warmup.warmup_steps
    rate = OptimizerFactory(config).build_learning_rate()
    return max(float(rate(step)) for step in (ends - 1, ends, ends + 1))


@each_file
def test_the_header_says_the_rate_and_its_warmup(path):
    params, text = parsed(path), header(path)
    config, batch = params.trainer.optimizer_config, params.task.train_data.global_batch_size
    rate, warmup = config.learning_rate.get(), config.warmup.get()
    base, k, shown = re.search(
        r"^# Rate:  ([\d.^]*\d)(?: sqrt\(([\d,]+ / [\d,]+)\) = ([\d.]*\d))?", text, re.MULTILINE
    ).groups()
    root, _, power = base.partition("^")
    value = float(root) ** float(power or 1)
    if k:
        ours, theirs = map(counts, k.split(" / "))
        assert ours == batch or "of which bert_small_cpu.yaml has" in text
        value *= (ours / theirs) ** 0.5
        assert value == pytest.approx(float(shown), rel=1e-3)
    assert rate.initial_learning_rate == pytest.approx(value, rel=1e-3)
    steps = warmup.steps if config.warmup.type == "tf_lamb" else warmup.warmup_steps
    if epochs := re.search(r"([\d.]+) epochs of warmup", text):
        assert steps == epochs_to_steps(float(epochs[1]), IMAGENET, batch)
    else:
        said = re.search(r"([\d,]+) steps of warmup|Warmup: ([\d,]+) steps", text)
        assert steps == counts(said[1] or said[2])
    if power := re.search(r"polynomial of power ([\d.]*\d)", text):
        assert rate.power == float(power[1])
    scales = r"--global_batch_size=(\d+)\D+scales it by [^:]*: ([\d.]*\d)"
    for size, scaled in re.findall(scales, text):
        flags = Flags(experiment_of(path), [path], global_batch_size=int(size))
        params, _ = parsing.parse(flags)
        assert peak(params) == pytest.approx(float(scaled), rel=0.02)
    if left := re.search(r"of which ([\d.]*\d) is left where warmup ends", text):
        assert peak(parsed(path)) == pytest.approx(float(left[1]))


@each_file
def test_the_command_in_the_header_can_be_typed(path):
    """What it overrides is there, and the experiment is that of the file."""
    text = header(path)
    commands = f"--experiment={experiment_of(path)} ", f"--stage={experiment_of(path)}:"
    assert any(c in text for c in commands) or "The commands are in bert_small_stage1_cpu" in text
    for override in re.findall(r"--params_override=(\S+)", text):
        parsing.parse(Flags(experiment_of(path), [path], params_override=override))


@each_file
def test_the_file_can_be_trained_to_the_end_of_its_rate(path):
    params = parsed(path)
    trainer, config = params.trainer, params.trainer.optimizer_config
    intervals = ("summary_interval", "checkpoint_interval", "validation_interval")
    assert [name for name in intervals if getattr(trainer, name) % trainer.steps_per_loop] == []
    rate, warmup = config.learning_rate.get(), config.warmup.get()
    if config.learning_rate.type == "polynomial":
        assert rate.decay_steps == trainer.train_steps
    else:
        behind = warmup.steps if warmup.handover == "continuous" else 0
        assert behind + rate.steps == trainer.train_steps
    check_optimizer(params)  # no decay in the loss, too
    check_batch(params)


@pytest.mark.parametrize("name", RECIPES)
def test_the_file_says_what_its_recipe_says(name):
    path = YAMLS[f"{name}.yaml"]
    ours = parsed(path)
    theirs = exp_factory.get_exp_config(experiment_of(path))
    theirs.override(settings_of_recipe(RECIPES[name]), is_strict=True)
    assert ours.trainer.train_steps == theirs.trainer.train_steps
    assert ours.task.train_data.global_batch_size == theirs.task.train_data.global_batch_size
    ours, theirs = ours.trainer.optimizer_config, theirs.trainer.optimizer_config
    for part in ("optimizer", "learning_rate", "warmup"):
        mine, recipes_ = getattr(ours, part), getattr(theirs, part)
        assert mine.type == recipes_.type
        for key, value in recipes_.get().as_dict().items():
            if key != "gradient_accumulation_steps":
                found = mine.get().as_dict()[key]
                assert found == (pytest.approx(value) if isinstance(value, float) else value), key


def reduced(params):
    """The same experiment, small enough for a test."""
    batch = 4 * (params.trainer.optimizer_config.optimizer.get().gradient_accumulation_steps or 1)
    batch = min(batch, 16)
    train_data, validation_data = {"global_batch_size": batch}, {"global_batch_size": 4}
    if isinstance(params.task, masked_lm.MaskedLMConfig):
        encoder = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 2,
                   "intermediate_size": 16, "vocab_size": 100}  # fmt: skip
        model = {"encoder": {"bert": encoder}, "cls_heads": tiny("")["task"]["model"]["cls_heads"]}
        train_data |= {"input_path": "dummy"}
        validation_data |= {"input_path": "dummy"}
    else:
        backbone = {"resnet": {"depth_multiplier": 0.125}}
        model = {"num_classes": 10, "input_size": [32, 32, 3], "backbone": backbone}
    optimizer = params.trainer.optimizer_config.optimizer
    accumulation = optimizer.get().gradient_accumulation_steps and 4
    return params.replace(
        runtime={"distribution_strategy": "one_device", "mixed_precision_dtype": "float32"},
        task={"model": model, "train_data": train_data, "validation_data": validation_data},
        trainer={
            "optimizer_config": {
                "optimizer": {optimizer.type: {"gradient_accumulation_steps": accumulation}}
            }
        },
    )


# One file an experiment, each of which has a program of its own.
PROGRAMS = {experiment_of(path): name for name, path in YAMLS.items()}.values()


def takes_a_step(name, pictures, **model):
    params = reduced(parsed(YAMLS[name]))
    if not isinstance(params.task, masked_lm.MaskedLMConfig):
        data = {"input_path": pictures}
        params = params.replace(task={"train_data": data, "validation_data": data, "model": model})
    trainer, logs = train(params, one_device(), 1)
    assert np.isfinite(logs["training_loss"])
    assert trainer.optimizer.iterations.numpy() == trainer.global_step.numpy() == 1


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_every_experiment_builds_and_takes_a_step(name, pictures):
    """Eagerly; compiled below."""
    with uncompiled():
        takes_a_step(name, pictures)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_every_experiment_is_compiled_and_takes_a_step(name, pictures):
    """ResNets at the least depth."""
    takes_a_step(name, pictures, backbone={"resnet": {"model_id": 10}})
