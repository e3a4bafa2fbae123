"""Which batch an experiment wants, from given times and runs."""

import pathlib
import re
import shlex

import pytest

pytest.importorskip("official")

import yaml
from official.modeling.optimization import optimizer_factory
from support.batch_flags import Flags
from support.garden import BATCH, EXAMPLES, EXPERIMENT, build, optimizer, tiny

from tf_lamb.find.goodput import costs, steps
from tf_lamb.model_garden import find
from tf_lamb.model_garden.checks.data import count_examples
from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common.errors import UserError
from tf_lamb.model_garden.experiments import parsing, schedule_configs


def flags(**given):
    """Those of the command, of which all but these are left out."""
    args = Flags(experiment=EXPERIMENT)
    names = "runs", "step_seconds", "batches", "devices", "gin_file", "gin_params"
    others = dict.fromkeys((
        "noise_scale", "micro_batch_size", "examples", "price", "deadline", "write_config",
    ))  # fmt: skip
    vars(args).update({name: [] for name in names} | others | given)
    return args


def run(monkeypatch, **given):
    monkeypatch.setattr(find.flags, "FLAGS", flags(**given))
    find.run()


@pytest.fixture
def config(records, tmp_path):
    """Writes a YAML of the tiny experiment, with such an optimizer."""

    def write(**own):
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump(tiny(records, optimizer_config=own)))
        return [str(path)]

    return write


RATE = "trainer.optimizer_config.learning_rate.tf_lamb_polynomial.initial_learning_rate"
GIVEN = {"step_seconds": ["2:0.4", "8:1.0"], "runs": ["8:20", "32:8"]}


def test_the_table_is_that_of_the_plan(config, monkeypatch, capsys):
    run(monkeypatch, config_file=config(), price=2.0, deadline=1.0, devices=["1", "2"], **GIVEN)
    expected = costs.plan(
        steps.curve_from_runs([(8, 20), (32, 8)]),
        costs.Machine(costs.fit_step_time([2, 8], [0.4, 1.0]), BATCH, (1, 2), price=2.0),
        baseline=BATCH, examples=EXAMPLES, deadline_hours=1.0,
    )  # fmt: skip
    assert capsys.readouterr().out.startswith(f"{expected}\nTo train with it: python -m tf_lamb")


def trained(command):
    """The experiment of a command that was printed."""
    line = command.splitlines()[-1].removeprefix("To train with it: ")
    given = dict(word[2:].split("=", 1) for word in shlex.split(line)[3:])
    params, _ = parsing.parse(Flags(
        given["experiment"], [given["config_file"]], recipe=given["recipe"],
        global_batch_size=int(given["global_batch_size"]),
        params_override=given["params_override"],
    ))  # fmt: skip
    return params


def test_the_command_trains_at_the_batch_for_the_steps_of_the_table(config, monkeypatch, capsys):
    run(
        monkeypatch, config_file=config(), micro_batch_size=16, params_override=f"{RATE}=0.02",
        batches=["32"], step_seconds=["2:0.4", "8:1.0"], noise_scale=64.0,
    )  # fmt: skip
    said = capsys.readouterr().out
    assert "fastest to the same loss: batch 32: " in said
    assert re.search(r"32  = 16 x 2 x 1 +7 ", said)  # S = 20 (1 + 64/32)/(1 + 64/8)
    params = trained(said)
    assert params.task.train_data.global_batch_size == 32
    trainer = params.trainer
    assert trainer.train_steps == 7
    assert trainer.optimizer_config.optimizer.tf_lamb.gradient_accumulation_steps == 2
    assert params.task.validation_data.global_batch_size == BATCH


def test_the_yaml_is_the_experiment_of_the_command(config, monkeypatch, capsys, tmp_path):
    given = {"config_file": config(), "batches": ["32"], "micro_batch_size": 16, **GIVEN}
    run(monkeypatch, **given)
    expected = trained(capsys.readouterr().out)
    path = str(tmp_path / "found.yaml")
    run(monkeypatch, **given, write_config=path)
    line = capsys.readouterr().out.splitlines()[-1].removeprefix("To train with it: ")
    assert f"#   {line}\n" in pathlib.Path(path).read_text()
    words = dict(word[2:].split("=", 1) for word in shlex.split(line)[3:])
    assert words == {"experiment": EXPERIMENT, "config_file": path, "mode": "train_and_eval",
                     "model_dir": "..."}  # fmt: skip
    params, text = parsing.parse(Flags(words["experiment"], [words["config_file"]]))
    assert params.as_dict() == expected.as_dict() and not text
    with pytest.raises(SystemExit, match=f"--write_config={path} exists: name another file, or"):
        run(monkeypatch, **given, write_config=path)


def test_a_stock_optimizer_accumulates_nothing(records):
    stock = build(tiny(records, optimizer_config={"optimizer": {"type": "adamw"}}))
    assert {row.accumulation for row in find.ask(stock, flags(**GIVEN)).rows} == {1}
    assert find.ask(build(tiny(records)), flags(**GIVEN)).rows[-1].accumulation > 1


def test_a_rate_that_is_found_in_training_is_not_scaled(records, monkeypatch):
    """With no advice to write a setting that it has not."""
    steered = type("Steered", (schedule_configs.Steered,), {})
    monkeypatch.setitem(optimizer_factory.LR_CLS, "tf_lamb_polynomial", steered)
    words = "learning_rate.type=tf_lamb_polynomial finds its rate in training, .* Write another"
    with pytest.raises(UserError, match=words):
        find.ask(build(tiny(records)), flags(**GIVEN))


@pytest.mark.parametrize("micro_batch", [8, 32])
def test_what_is_found_can_be_trained(config, monkeypatch, tmp_path, capsys, micro_batch):
    """A baseline that measured its noise: one micro-batch has no parts to compare."""
    own = optimizer(gradient_accumulation_steps=2, measure_noise={"enabled": True})
    given = {"batches": ["32"], "micro_batch_size": micro_batch, **GIVEN}
    run(monkeypatch, config_file=config(**own), **given)
    params = trained(capsys.readouterr().out)
    check_run(params, "train", str(tmp_path / "model"))
    chosen = params.trainer.optimizer_config.optimizer.tf_lamb
    assert chosen.gradient_accumulation_steps == 32 // micro_batch
    assert chosen.measure_noise.enabled is (micro_batch < 32)


@pytest.mark.parametrize(("given", "words"), [
    ({"runs": []}, "Pass one of them"),
    ({"noise_scale": 9.0}, "--runs=64:4800,1024:300, .*, or --noise_scale=N. Pass one of them"),
    ({"runs": ["8:20", "32"]}, "--runs=8:20,32: write pairs, such as 64:4800"),
    ({"runs": ["8:20", "32:nan"]}, r"--runs: Steps in runs must be a number in .*, but it is nan"),
    ({"runs": [], "noise_scale": -1.0}, r"--noise_scale: noise must be a number in \(0, inf\)"),
    ({"step_seconds": []}, "--step_seconds is missing. Write the seconds of a step at two"),
    ({"step_seconds": ["2:0.4"]}, "--step_seconds: A fit needs two different"),
    ({"devices": ["1", "x"]}, "--devices=1,x: write whole numbers, such as"),
    ({"write_config": "/no/a.yaml"}, "a.yaml: there is no folder /no$"),
    ({"global_batch_size": 64}, "--global_batch_size=64: the baseline is"),
])  # fmt: skip
def test_flags_are_refused_before_the_experiment_is_read(given, words, monkeypatch):
    monkeypatch.setattr(find.train, "register", lambda: pytest.fail("read"))
    with pytest.raises(SystemExit, match=f"^tf_lamb.model_garden.find: .*{words}") as refusal:
        run(monkeypatch, **GIVEN | given)
    assert "\n" not in refusal.value.code


ADASCALE = optimizer(gradient_accumulation_steps=2, adascale={"scale": 2, "base_steps": 20})
POWER = {"learning_rate": {"type": "power", "power": {"initial_learning_rate": 0.1}}}


@pytest.mark.parametrize(("own", "given", "batch", "words"), [
    ({}, {}, 128, "global_batch_size=128 is more than the 64 examples"),
    ({}, {"price": 0.0}, BATCH, r"price must be a number in \(0, inf\)"),
    ({}, {"batches": ["4096"]}, BATCH, r"No batch can be planned .*: the data has 64 examples"),
    (ADASCALE, {}, BATCH, r"tf_lamb.adascale makes other steps .*tf_lamb.adascale.scale=null$"),
])  # fmt: skip
def test_what_cannot_be_planned_is_refused(own, given, batch, words, records):
    settings = tiny(records, optimizer_config=own)
    settings["task"]["train_data"]["global_batch_size"] = batch
    with pytest.raises(find.UserError, match=words):
        find.ask(build(settings), flags(**GIVEN | given))


def test_a_command_that_train_refuses_is_not_printed(config, monkeypatch):
    words = "the batch that was found cannot be trained: .*cannot scale learning_rate.type=power"
    with pytest.raises(SystemExit, match=words):
        run(monkeypatch, config_file=config(**POWER), **GIVEN)


def test_examples_are_counted_by_the_lengths_of_records(records, tmp_path):
    data, written = build(tiny(records)).task.train_data, pathlib.Path(records).read_bytes()
    assert count_examples(data) == EXAMPLES
    for name in ("two-1", "two-2"):
        (tmp_path / name).write_bytes(written)
    assert count_examples(data.replace(input_path=f"{tmp_path}/two-*")) == 2 * EXAMPLES


@pytest.mark.parametrize(
    "path",
    ["{folder}/cut", "{folder}/none*", "", "gs://no/where"],
    ids=["cut", "no file", "no path", "a bucket"],
)
def test_examples_that_cannot_be_counted_have_no_number(path, records, tmp_path):
    data = build(tiny(records)).task.train_data
    (tmp_path / "cut").write_bytes(pathlib.Path(records).read_bytes()[:-1])
    assert count_examples(data.replace(input_path=path.format(folder=tmp_path))) is None
