"""Which batch an experiment wants, from given times and runs."""

import pathlib
import re
import shlex
import types

import pytest

pytest.importorskip("official")

import yaml
from support.batch_flags import Flags
from support.garden import BATCH, EXAMPLES, EXPERIMENT, build, optimizer, tiny

from tf_lamb.core.goodput import plan, steps
from tf_lamb.model_garden import find
from tf_lamb.model_garden.checks import records as record_files
from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.experiments import parsing


def flags(**given):
    """Those of the command, of which all but these are left out."""
    args = Flags(experiment=EXPERIMENT)
    lists = dict.fromkeys(("runs", "step_seconds", "batches", "devices"), ())
    others = dict.fromkeys((
        "noise_scale", "micro_batch_size", "examples", "price", "deadline",
    ))  # fmt: skip
    vars(args).update(gin_file=[], gin_params=[])
    vars(args).update({name: [] for name in lists} | others | given)
    return args


def run(monkeypatch, **given):
    monkeypatch.setattr(find.flags, "FLAGS", flags(**given))
    find.run()


@pytest.fixture
def config(records, tmp_path):
    """A YAML of the tiny experiment."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny(records)))
    return str(path)


RATE = "trainer.optimizer_config.learning_rate.tf_lamb_polynomial.initial_learning_rate"
GIVEN = {"step_seconds": ["2:0.4", "8:1.0"], "runs": ["8:20", "32:8"]}


def test_the_table_is_that_of_the_plan(config, monkeypatch, capsys):
    run(monkeypatch, config_file=[config], price=2.0, deadline=1.0, devices=["1", "2"], **GIVEN)
    expected = plan.plan(
        steps.from_runs([(8, 20), (32, 8)]),
        plan.Machine(plan.fit_time([2, 8], [0.4, 1.0]), BATCH, (1, 2), price=2.0),
        baseline=BATCH, examples=EXAMPLES, deadline=1.0,
    )  # fmt: skip
    assert capsys.readouterr().out.startswith(f"{expected}\nTo train with it: python -m tf_lamb")
    assert expected.rows[-1].batch == EXAMPLES and {row.devices for row in expected.rows} == {1, 2}


def trained(command):
    """The experiment of a command that was printed."""
    line = command.splitlines()[-1].removeprefix("To train with it: ")
    given = dict(word[2:].split("=", 1) for word in shlex.split(line)[3:])
    override = given["params_override"]
    params, text = parsing.parse(
        Flags(given["experiment"], [given["config_file"]], params_override=override)
    )
    assert not text
    return params


def test_the_command_trains_at_the_batch_for_the_steps_of_the_table(config, monkeypatch, capsys):
    run(
        monkeypatch, config_file=[config], micro_batch_size=16, params_override=f"{RATE}=0.02",
        batches=["32"], step_seconds=["2:0.4", "8:1.0"], noise_scale=64.0,
    )  # fmt: skip
    said = capsys.readouterr().out
    assert "take 32: " in said
    assert re.search(r"32  = 16 x 2 x 1 +7 ", said)  # S = 20 (1 + 64/32)/(1 + 64/8)
    params = trained(said)
    assert params.task.train_data.global_batch_size == 32
    trainer = params.trainer
    assert trainer.train_steps == 7
    assert trainer.optimizer_config.optimizer.tf_lamb.gradient_accumulation_steps == 2
    # The rest is transfer's: twice the rate at four times the batch.
    assert trainer.optimizer_config.learning_rate.tf_lamb_polynomial.initial_learning_rate == 0.04
    assert params.task.validation_data.global_batch_size == BATCH


def test_a_command_of_other_devices_names_them(config, records):
    params, args = build(tiny(records)), flags(config_file=[config])
    row = types.SimpleNamespace(batch=32, steps=20, accumulation=1, devices=4, micro_batch=8)
    runtime = trained(find.command(params, row, args)).runtime
    assert (runtime.distribution_strategy, runtime.num_gpus) == ("mirrored", 4)
    row.devices, row.micro_batch = 1, 32
    assert "mirrored" not in find.command(params, row, args)


def test_a_stock_optimizer_accumulates_nothing(records, tmp_path):
    settings, path = tiny(records), tmp_path / "a.yaml"
    settings["trainer"]["optimizer_config"]["optimizer"] = {"type": "adamw"}
    path.write_text(yaml.safe_dump(settings))
    params = build(settings)
    answer = find.ask(params, flags(**GIVEN))
    assert {row.accumulation for row in answer.rows} == {1}
    assert find.ask(build(tiny(records)), flags(**GIVEN)).rows[-1].accumulation > 1
    assert "accumulation" not in find.command(
        params, answer.fastest, flags(config_file=[str(path)])
    )


def test_batches_that_are_left_out_are_named(config, monkeypatch, capsys):
    run(monkeypatch, config_file=[config], batches=["16", "128", "4096"], **GIVEN)
    table = capsys.readouterr().out
    assert "\nleft out 128: the data has 64 examples to train on\n" in table
    assert "\nleft out 4,096: the data has 64 examples to train on\ntake 16: " in table


def test_adascale_is_refused(records):
    own = {"gradient_accumulation_steps": 2, "adascale": {"scale": 2, "base_steps": 20}}
    params = build(tiny(records, optimizer_config=optimizer(**own)))
    words = r"tf_lamb.adascale makes other steps .* Write trainer.*tf_lamb.adascale.scale=null$"
    with pytest.raises(find.UserError, match=words):
        find.ask(params, flags(**GIVEN))


@pytest.mark.parametrize("micro_batch", [8, 32])
def test_what_is_found_can_be_trained(records, monkeypatch, tmp_path, capsys, micro_batch):
    """A baseline that measured its noise: one micro-batch has no parts to compare."""
    path = tmp_path / "a.yaml"
    own = {"gradient_accumulation_steps": 2, "measure_noise": {"enabled": True}}
    path.write_text(yaml.safe_dump(tiny(records, optimizer_config=optimizer(**own))))
    run(monkeypatch, config_file=[str(path)], batches=["32"], micro_batch_size=micro_batch, **GIVEN)
    params = trained(capsys.readouterr().out)
    check_run(params, "train", str(tmp_path / "model"))
    chosen = params.trainer.optimizer_config.optimizer.tf_lamb
    assert chosen.gradient_accumulation_steps == 32 // micro_batch
    assert chosen.measure_noise.enabled is (micro_batch < 32)


def test_a_command_that_train_refuses_is_not_printed(records):
    rate = {"type": "power", "power": {"initial_learning_rate": 0.1}}
    params = build(tiny(records, optimizer_config={"learning_rate": rate}))
    row = find.ask(params, flags(**GIVEN)).fastest
    words = "the batch that was found cannot be trained: .*cannot scale learning_rate.type=power"
    with pytest.raises(find.UserError, match=words):
        find.command(params, row, flags())


@pytest.mark.parametrize(("given", "words"), [
    ({"runs": []}, "Pass one of them"),
    ({"noise_scale": 9.0}, "--runs=64:4800,1024:300, .*, or --noise_scale=N. Pass one of them"),
    ({"runs": ["8:20", "32"]}, "--runs=8:20,32: write pairs, such as 64:4800"),
    ({"runs": ["8:20"]}, r"--runs: Runs at two batches are needed, 16 times apart, not at \[8.0\]"),
    ({"runs": ["8:20", "32:nan"]}, r"--runs: Steps in runs must be a number in .*, but it is nan"),
    ({"runs": [], "noise_scale": -1.0}, r"--noise_scale: noise must be a number in \(0, inf\)"),
    ({"step_seconds": ["8:a"]}, "--step_seconds=8:a: write pairs"),
    ({"step_seconds": ["8:1"]}, "--step_seconds: A fit needs two different"),
    ({"step_seconds": []}, "--step_seconds: A fit needs two different"),
    ({"devices": ["1", "x"]}, "--devices=1,x: write whole numbers"),
    ({"global_batch_size": 64}, "--global_batch_size=64: the baseline is"),
])  # fmt: skip
def test_flags_are_refused_before_the_experiment_is_read(given, words, monkeypatch):
    monkeypatch.setattr(find.train, "register", lambda: pytest.fail("read"))
    with pytest.raises(SystemExit, match=f"^tf_lamb.model_garden.find: .*{words}") as refusal:
        run(monkeypatch, **GIVEN | given)
    assert "\n" not in refusal.value.code


@pytest.mark.parametrize(("given", "batch", "words"), [
    ({}, 128, "global_batch_size=128 is more than the 64 examples"),
    ({"examples": 100}, 128, "global_batch_size=128 is more than the 100 examples"),
    ({"price": 0.0}, BATCH, r"price must be a number in \(0, inf\)"),
    ({"batches": ["4096"]}, BATCH, r"No batch can be planned .*: the data has 64 examples"),
])  # fmt: skip
def test_what_cannot_be_planned_is_refused(given, batch, words, records):
    settings = tiny(records)
    settings["task"]["train_data"]["global_batch_size"] = batch
    with pytest.raises(find.UserError, match=words):
        find.ask(build(settings), flags(**GIVEN | given))


def test_examples_are_counted_by_the_lengths_of_records(records, tmp_path):
    train_data = build(tiny(records)).task.train_data
    assert record_files.count_examples(train_data) == EXAMPLES
    cut = tmp_path / "cut.tfrecord"
    written = pathlib.Path(records).read_bytes()
    cut.write_bytes(written[:-1])
    for path in (str(cut), str(tmp_path / "none*"), "", "gs://no/where"):
        assert record_files.count_examples(train_data.replace(input_path=path)) is None, path
    pattern = f"{tmp_path}/two-*"
    for name in ("two-1", "two-2"):
        (tmp_path / name).write_bytes(written)
    assert record_files.count_examples(train_data.replace(input_path=pattern)) == 2 * EXAMPLES
