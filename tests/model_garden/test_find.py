"""Which batch an experiment wants: from given times and runs, and from a few steps of it."""

import pathlib
import re
import shlex
import types

import pytest

pytest.importorskip("official")

import matplotlib.image
import tensorflow as tf
import yaml
from support.batch_flags import Flags
from support.garden import BATCH, EXAMPLES, EXPERIMENT, build, optimizer, tiny

from tf_lamb.core.goodput import plan, steps, time
from tf_lamb.model_garden import find
from tf_lamb.model_garden.checks import data
from tf_lamb.model_garden.checks.experiment import check_run
from tf_lamb.model_garden.common import batches
from tf_lamb.model_garden.experiments import parsing
from tf_lamb.model_garden.running import timing
from tf_lamb.tpu import compiler, roofline
from tf_lamb.tpu.report import Report


def flags(**given):
    """Those of the command, of which all but these are left out."""
    args = Flags(experiment=EXPERIMENT)
    lists = dict.fromkeys(("runs", "step_seconds", "batches", "devices"), ())
    others = dict.fromkeys((
        "noise_scale", "noise_dir", "topology", "micro_batch_size", "examples", "price", "deadline",
        "output_dir", "write_config",
    ))  # fmt: skip
    vars(args).update(replace_stock=False, gin_file=[], gin_params=[])
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
        plan.Machine(time.fit([2, 8], [0.4, 1.0]), BATCH, (1, 2), price=2.0),
        baseline=BATCH, examples=EXAMPLES, deadline=1.0,
    )  # fmt: skip
    assert capsys.readouterr().out == f"{expected}\n"
    assert expected.rows[-1].batch == EXAMPLES and {row.devices for row in expected.rows} == {1, 2}


def test_the_config_trains_at_the_batch_for_the_steps_of_the_table(
    config, tmp_path, monkeypatch, capsys
):
    path, folder = tmp_path / "found.yaml", tmp_path / "new" / "folder"
    run(
        monkeypatch, config_file=[config], micro_batch_size=16, write_config=str(path),
        params_override=f"{RATE}=0.02", output_dir=str(folder), batches=["32"],
        step_seconds=["2:0.4", "8:1.0"], noise_scale=64.0,
    )  # fmt: skip
    *table, last = capsys.readouterr().out.splitlines()
    assert "take 32: " in "\n".join(table)
    # S = 20 (1 + 64/32)/(1 + 64/8)
    assert re.search(r"32  = 16 x 2 x 1 +7 ", "\n".join(table))
    assert matplotlib.image.imread(folder / "find.png").shape[:2] == (528, 704)
    command = last.removeprefix("To train with it: ")
    assert f"#   {command}\n" in path.read_text()
    given = dict(word[2:].split("=", 1) for word in shlex.split(command)[3:])
    params, text = parsing.parse(Flags(given["experiment"], [given["config_file"]]))
    assert not text
    assert params.task.train_data.global_batch_size == 32
    trainer = params.trainer
    assert trainer.train_steps == 7
    assert trainer.optimizer_config.optimizer.tf_lamb.gradient_accumulation_steps == 2
    # The rest is transfer's: twice the rate at four times the batch.
    assert trainer.optimizer_config.learning_rate.tf_lamb_polynomial.initial_learning_rate == 0.04
    assert params.task.validation_data.global_batch_size == BATCH


def test_a_config_of_other_devices_names_them(records):
    params = build(tiny(records))
    row = types.SimpleNamespace(batch=32, steps=20, accumulation=1, devices=4)
    found = find.settings_at(params, row, {"runtime": {"enable_xla": True}})
    assert found["runtime"] == {
        "enable_xla": True, "distribution_strategy": "mirrored", "num_gpus": 4,
    }  # fmt: skip
    row.devices = 1
    assert "runtime" not in find.settings_at(params, row, {})


def test_a_stock_optimizer_accumulates_nothing(records):
    settings = tiny(records)
    settings["trainer"]["optimizer_config"]["optimizer"] = {"type": "adamw"}
    params = build(settings)
    answer = find.ask(params, flags(**GIVEN))
    assert {row.accumulation for row in answer.rows} == {1}
    assert find.ask(build(tiny(records)), flags(**GIVEN)).rows[-1].accumulation > 1
    assert "accumulation" not in str(find.settings_at(params, answer.fastest, {}))


def test_batches_that_are_left_out_are_named(config, monkeypatch, capsys):
    run(monkeypatch, config_file=[config], batches=["16", "128", "4096"], **GIVEN)
    table = capsys.readouterr().out
    assert "\nleft out 128: the data has 64 examples to train on\n" in table
    assert "\nleft out 4,096: the data has 64 examples to train on\ntake 16: " in table


def test_adascale_is_refused_before_any_step(records, monkeypatch):
    monkeypatch.setattr(timing, "seconds", lambda *_: pytest.fail("timed"))
    own = {"gradient_accumulation_steps": 2, "adascale": {"scale": 2, "scale_invariant_steps": 20}}
    params = build(tiny(records, optimizer_config=optimizer(**own)))
    words = r"tf_lamb.adascale makes other steps .* Write trainer.*tf_lamb.adascale.scale=null$"
    with pytest.raises(find.UserError, match=words):
        find.ask(params, flags(noise_scale=64.0))


@pytest.mark.parametrize("micro_batch", [8, 32])
def test_what_is_found_can_be_trained(records, monkeypatch, tmp_path, micro_batch):
    """A baseline that measured its noise: one micro-batch has no parts to compare."""
    path, found = tmp_path / "a.yaml", tmp_path / "found.yaml"
    own = {"gradient_accumulation_steps": 2, "measure_noise": {"enabled": True}}
    path.write_text(yaml.safe_dump(tiny(records, optimizer_config=optimizer(**own))))
    run(monkeypatch, config_file=[str(path)], write_config=str(found), batches=["32"],
        micro_batch_size=micro_batch, **GIVEN)  # fmt: skip
    params, _ = parsing.parse(Flags(EXPERIMENT, [str(found)]))
    check_run(params, "train", str(tmp_path / "model"))
    chosen = params.trainer.optimizer_config.optimizer.tf_lamb
    assert chosen.gradient_accumulation_steps == 32 // micro_batch
    assert chosen.measure_noise.enabled is (micro_batch < 32)
    assert (
        timing.one_micro_batch(params, 8).trainer.optimizer_config.optimizer.tf_lamb.as_dict()[
            "measure_noise"
        ]["enabled"]
        is False
    )


def test_settings_that_train_refuses_are_not_printed(records):
    settings = tiny(records)
    find.check_found(EXPERIMENT, settings)
    own = optimizer(gradient_accumulation_steps=3)
    settings["trainer"]["optimizer_config"] |= own
    with pytest.raises(
        find.UserError, match="^the batch that was found cannot be trained: .* 8 ex"
    ):
        find.check_found(EXPERIMENT, settings)


@pytest.mark.usefixtures("eager")
def test_without_times_a_few_steps_are_taken(records, monkeypatch, capsys):
    monkeypatch.setattr(timing, "CALLS", 1)
    params = build(tiny(records, optimizer_config=optimizer(gradient_accumulation_steps=2)))
    answer = find.ask(params, flags(noise_scale=64.0))
    timed = re.findall(r"timing (\d+) examples \.\.\. (\S+) s a step\n", capsys.readouterr().out)
    assert [int(size) for size, _ in timed] == [1, 4]
    assert all(float(seconds) > 0 for _, seconds in timed)
    assert answer.machine.micro_batch == 4 and answer.machine.time.alpha_c > 0


def test_a_timed_step_is_of_one_micro_batch(records, monkeypatch):
    """Alone, whatever the experiment has; and seconds are of one step."""
    seen, clock = [], iter(range(100))

    class Trainer:
        def __init__(self, params, *_, **__):
            optimizer = params.trainer.optimizer_config.optimizer.get()
            batch = params.task.train_data.global_batch_size
            seen.append((batch, optimizer.gradient_accumulation_steps))

        def train(self, count):
            seen.append(int(count))
            return {"training_loss": tf.constant(1.0)}

    monkeypatch.setattr(timing.train_utils, "create_trainer", Trainer)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    params = build(tiny(records, optimizer_config=optimizer(gradient_accumulation_steps=2)))
    assert timing.seconds(params, 4) == pytest.approx(1 / timing.STEPS)
    assert seen == [(4, 1), 1, *[timing.STEPS] * timing.CALLS]


TOPOLOGY = roofline.topology("v5e:2x2")
ALONE = 8e9  # bytes of the update
UPDATE, EXAMPLE, LARGEST, GRADIENTS = 8e9, 1e9, 31, 4e9  # bytes, examples


@pytest.fixture
def compiled(monkeypatch):
    """A TPU's compiler whose steps move so many bytes; the batches that it was asked for."""
    seen = []

    class Compiled:
        weights = slots = 0

        def step(self, examples):
            seen.append(examples)
            if (needed := int(examples * TOPOLOGY.chip.memory / LARGEST)) > TOPOLOGY.chip.memory:
                raise compiler.TooLarge(needed, TOPOLOGY.chip.memory)
            return compiler.Program(0, 0, 0, needed, 1.0, UPDATE + EXAMPLE * examples, ())

        def update(self):
            return compiler.Program(0, 0, 0, 0, 1.0, ALONE, ())

        def network(self, _):
            return GRADIENTS, GRADIENTS, None

    def prepare(params, topology, name, say):
        assert topology == TOPOLOGY and batches.micro_batches(params) == 1
        return Report(name, topology, params.task.train_data.global_batch_size), Compiled()

    monkeypatch.setattr(find.preflight, "prepare", prepare)
    monkeypatch.setattr(find.compiler, "require", lambda: None)
    return seen


def on_a_tpu(records):
    settings = tiny(records, optimizer_config=optimizer(gradient_accumulation_steps=2))
    settings["runtime"]["distribution_strategy"] = "tpu"
    return build(settings)


def test_a_topology_bounds_the_time_and_the_memory(records, compiled):
    answer = find.ask(on_a_tpu(records), flags(noise_scale=64.0, topology="v5e:2x2"))
    assert compiled[0] == 1 and compiled[-3:] == [1, 7, 31]
    found, chip = answer.machine, TOPOLOGY.chip
    assert (found.micro_batch, found.devices) == (LARGEST, (4,))
    assert found.time.beta_c == pytest.approx(EXAMPLE / chip.bandwidth)
    assert found.time.update == pytest.approx(UPDATE / chip.bandwidth)
    assert found.time.alpha_c == pytest.approx(0, abs=1e-9)
    # The longer of the two is all that counts.
    network = 2 * 3 / 4 * GRADIENTS / chip.links
    micro = EXAMPLE * 2 / chip.bandwidth
    assert network > 10 * micro
    assert found.seconds(8, 4) == pytest.approx(network + found.time.update)
    text = str(answer)
    assert "\nat least " in text and "network hidden" in text and "  least time  " in text


def test_an_update_that_takes_longer_alone_is_part_of_the_step(records, compiled, monkeypatch):
    monkeypatch.setitem(globals(), "ALONE", 9e9)
    args = flags(noise_scale=64.0, topology="v5e:2x2", micro_batch_size=16)
    alone = find.ask(on_a_tpu(records), args).machine.time
    assert alone.update == pytest.approx(UPDATE / TOPOLOGY.chip.bandwidth)
    assert alone.alpha_c == 0
    assert compiled == [1, 4, 16]


def test_a_topology_is_refused_where_it_cannot_be(records, compiled):
    given = {"noise_scale": 64.0, "topology": "v5e:2x2"}
    with pytest.raises(find.UserError, match="64 examples at once on v5e:2x2: "):
        find.ask(on_a_tpu(records), flags(micro_batch_size=64, **given))
    with pytest.raises(find.UserError, match="Write runtime.distribution_strategy=tpu"):
        find.ask(build(tiny(records)), flags(**given))
    for more, words in (
        ({"topology": "v9:2x2"}, "TPU v9 is not known"),
        ({"devices": ["8"]}, "--topology=v5e:2x2 tells the same as --devices: leave one out"),
    ):
        with pytest.raises(ValueError, match=words):
            find.check_flags(flags(**given | more))


def readings(folder, values):
    with tf.summary.create_file_writer(str(folder / "train")).as_default():
        for step, value in enumerate(values, 1):
            tf.summary.scalar("noise_scale", value, step=step)


def test_the_last_finite_reading_counts(tmp_path):
    readings(tmp_path, [50.0, 200.0, float("inf"), float("nan"), -3.0])
    assert find.last_noise_scale(str(tmp_path)) == 200


@pytest.mark.parametrize(("values", "found"), [
    ([], "there is no reading"),
    ([float("nan"), float("inf")], "none of 2 readings is finite"),
])  # fmt: skip
def test_a_folder_without_a_finite_reading_is_refused(values, found, tmp_path):
    readings(tmp_path, values)
    with pytest.raises(
        find.UserError, match=f"--noise_dir={tmp_path} tells no noise scale: {found}"
    ):
        find.last_noise_scale(str(tmp_path))


@pytest.mark.parametrize(("given", "words"), [
    ({}, "Pass --runs=64:4800,1024:300, .*; or --noise_scale=N; or --noise_dir=MODEL_DIR"),
    ({"noise_scale": 9.0, "runs": ["8:20", "32:8"]}, "--runs and --noise_scale tell the same"),
    ({"runs": ["8:20", "32"]}, "--runs: '32' is no BATCH:STEPS, such as 64:4800"),
    ({"runs": ["8:20"]}, r"--runs: Runs at two batches are needed, 16 times apart, not at \[8.0\]"),
    ({"runs": ["8:20", "32:nan"]}, r"--runs: Steps in runs must be a number in .*, but it is nan"),
    ({"noise_scale": 9.0, "step_seconds": ["8:a"]}, "--step_seconds: '8:a' is no MICRO_BATCH"),
    ({"noise_scale": 9.0, "step_seconds": ["8:1"]}, "--step_seconds: A fit needs two different"),
    ({"noise_scale": 9.0, "devices": ["1", "x"]}, "--devices=1,x: write whole numbers"),
    ({"noise_scale": 9.0, "global_batch_size": 64}, "--global_batch_size=64: the baseline is"),
    ({"noise_scale": 9.0, "write_config": "/no/a.yaml"}, "a.yaml: there is no folder /no$"),
])  # fmt: skip
def test_flags_are_refused_before_the_experiment_is_read(given, words, monkeypatch):
    monkeypatch.setattr(find.train, "register", lambda: pytest.fail("read"))
    with pytest.raises(SystemExit, match=f"^tf_lamb.model_garden.find: .*{words}") as refusal:
        run(monkeypatch, **given)
    assert "\n" not in refusal.value.code


@pytest.mark.parametrize(("given", "batch", "words"), [
    ({}, 128, "global_batch_size=128 is more than the 64 examples"),
    ({"examples": 100}, 128, "global_batch_size=128 is more than the 100 examples"),
    ({"noise_scale": -1.0}, BATCH, r"--noise_scale: noise must be a number in \(0, inf\)"),
    ({"price": 0.0}, BATCH, r"price must be a number in \(0, inf\)"),
    ({"batches": ["4096"]}, BATCH, r"No batch can be planned .*: the data has 64 examples"),
    ({"micro_batch_size": 1}, BATCH, "write --micro_batch_size=N"),
])  # fmt: skip
def test_what_cannot_be_planned_is_refused_before_any_step(
    given, batch, words, records, monkeypatch
):
    monkeypatch.setattr(timing, "seconds", lambda *_: pytest.fail("timed"))
    settings = tiny(records)
    settings["task"]["train_data"]["global_batch_size"] = batch
    with pytest.raises(find.UserError, match=words):
        find.ask(build(settings), flags(**{"noise_scale": 64.0} | given))


def test_what_transfer_cannot_scale_is_refused_before_any_step(records, monkeypatch, tmp_path):
    monkeypatch.setattr(timing, "seconds", lambda *_: pytest.fail("timed"))
    rate = {"type": "power", "power": {"initial_learning_rate": 0.1}}
    params = build(tiny(records, optimizer_config={"learning_rate": rate}))
    with pytest.raises(find.UserError, match="--write_config: .*cannot scale learning_rate.type="):
        find.ask(params, flags(noise_scale=64.0, write_config=str(tmp_path / "a.yaml")))


def test_examples_are_counted_by_the_lengths_of_records(records, tmp_path):
    train_data = build(tiny(records)).task.train_data
    assert data.count_examples(train_data) == EXAMPLES
    cut = tmp_path / "cut.tfrecord"
    written = pathlib.Path(records).read_bytes()
    cut.write_bytes(written[:-1])
    for path in (str(cut), str(tmp_path / "none*"), "", "gs://no/where"):
        assert data.count_examples(train_data.replace(input_path=path)) is None, path
    pattern = f"{tmp_path}/two-*"
    for name in ("two-1", "two-2"):
        (tmp_path / name).write_bytes(written)
    assert data.count_examples(train_data.replace(input_path=pattern)) == 2 * EXAMPLES
