"""Preflight of experiments: what the TPU's compiler says of them, each program compiled once."""

import functools
import json
import math
import re
import subprocess
import sys

import pytest

pytest.importorskip("official")
pytest.importorskip("libtpu")

import tensorflow as tf
from official.core import task_factory, train_utils
from support import clusters, on_tpu
from support.configs import header
from support.garden import EXPERIMENT, ROOT, build, optimizer, tiny
from support.on_tpu import SMALL

from tf_lamb.model_garden.common.errors import UserError
from tf_lamb_extras.preflight import model_garden as frontend
from tf_lamb_extras.preflight import step_programs_of_model_garden as step_programs
from tf_lamb_extras.preflight.tpu import compiler, roofline


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture(autouse=True)
def each_program_once(known):
    with on_tpu.each_once(known):
        yield


# --- programs ---


def test_results_take_the_place_of_variables():
    v, w = tf.Variable(tf.ones([1024, 1024])), tf.Variable(tf.ones([256]))

    @tf.function(jit_compile=True)
    def step(x):
        w.assign_add(x)
        v.assign(tf.sin(v))
        return tf.reduce_sum(x)

    hlo = step_programs.hlo(step, tf.ones([256]))
    program = compiler.compile_hlo(hlo, compiler.devices(SMALL)[0])
    assert program.aliased >= 4 * (1024 * 1024 + 256)
    assert program.memory - program.arguments < 4 * 1024 * 1024  # no second v


def a_branch(rate=2.0):
    """A program with computations of its own, made anew."""
    w = tf.Variable(tf.ones([8]))

    @tf.function(jit_compile=True)
    def step(x):
        w.assign(tf.cond(tf.reduce_sum(x) > 0, lambda: rate * x, lambda: w))
        return tf.reduce_max(w)

    return compiler.text_of(step_programs.hlo(step, tf.ones([8])))


def test_a_program_has_one_text_however_often_it_is_made():
    text = a_branch()
    assert text.count(" {\n") > 3 and "input_output_alias" in text
    assert a_branch() == text != a_branch(3.0)


def test_what_xla_has_no_program_for_is_named_with_its_layer():
    @tf.function(jit_compile=True)
    def step(x):
        with tf.name_scope("my_layer"):
            return tf.strings.length(tf.strings.as_string(x))

    with pytest.raises(UserError, match="AsString of my_layer/AsString"):
        step_programs.hlo(step, tf.ones([2]))


def settings_of(records, replicas=8, examples=4, **fields):
    settings = tiny(records)
    settings["task"]["train_data"]["global_batch_size"] = replicas * examples
    settings["trainer"]["optimizer_config"].update(optimizer(**fields))
    return settings


def experiment(records, **fields):
    return build(settings_of(records, **fields))


@pytest.mark.slow
def test_what_an_experiment_keeps_is_counted(records):
    params = experiment(records)
    found = frontend.ask(params, SMALL, EXPERIMENT, **on_tpu.ALONE)
    steps = step_programs.Steps(params)
    count = sum(math.prod(w.shape) for w in steps._model.variables)
    assert found.memory.weights == 4 * count
    assert found.memory.slots >= 8 * count  # both moments, and some scalars
    assert found.memory.slots < 8 * count + 100
    assert found.work.reduced == 4 * count
    assert 0 < found.work.update_flops < found.work.flops
    assert 0 < found.work.update_bytes < found.work.bytes_moved
    assert found.fits and found.memory.available > found.needed > 0


def a_product():
    w = tf.Variable(tf.ones([256, 256]))

    @tf.function(jit_compile=True)
    def step(x):
        w.assign(tf.tanh(w @ x))
        return tf.reduce_sum(w)

    return functools.partial(step_programs.hlo, step, tf.ones([256, 256]))


def test_on_a_cpu_the_same_road_says_what_xla_says_of_the_program_that_runs():
    """Within 10 %: operations, and bytes as this package reads them."""
    ours, truth = on_tpu.accounts_on_a_cpu(a_product())
    assert ours == pytest.approx(truth, rel=0.1)


def check_accumulation(found):
    assert (found["micro_batches"], found["examples_a_replica"]) == (2, 2)
    memory = found["memory"]
    assert memory["slots"] > 2.9 * memory["weights"]  # two moments and an accumulator
    assert found["work"]["reduced"] == memory["weights"]  # once an update


def test_accumulation_is_in_the_report(records, monkeypatch):
    """With the numbers of no program at all."""
    monkeypatch.setattr(step_programs.Steps, "step", lambda steps, examples: b"")
    monkeypatch.setattr(step_programs.Steps, "update", lambda steps: b"")
    program = compiler.Program(0, 0, 0, 0, 1.0, 0, ())
    monkeypatch.setattr(compiler, "compile_hlo", lambda hlo, device: program)
    settings = settings_of(records, gradient_accumulation_steps=2)
    check_accumulation(on_tpu.small(settings, EXPERIMENT))


@pytest.mark.slow
def test_too_large_names_what_fits_and_it_does(records):
    settings = tiny(records)
    encoder = settings["task"]["model"]["encoder"]["bert"]
    encoder |= {"intermediate_size": 2**16, "max_position_embeddings": 512}
    settings["task"]["train_data"] |= {"seq_length": 512, "global_batch_size": 8 * 100}
    ask = functools.partial(on_tpu.too_large, settings, EXPERIMENT)
    ((fits, needed, text, memory, one_more_is_too_large),) = clusters.results(ask)
    assert not fits and needed > SMALL.chip.memory
    assert "it does not fit, by" in text and "gradient_accumulation_steps=" in text
    assert memory <= SMALL.chip.memory
    assert one_more_is_too_large


def test_every_tpu_configuration_is_of_one_program():
    assert sorted(name for names in on_tpu.EQUAL for name in names) == sorted(on_tpu.FILES)


@pytest.mark.slow
@pytest.mark.parametrize("names", on_tpu.EQUAL, ids=lambda names: names[0])
def test_every_tpu_configuration_passes_at_its_own_topology(names):
    """Of a small model; at full size in benchmarks/performance/preflight.py."""
    ask = functools.partial(on_tpu.reports, names)
    ((programs, reports),) = clusters.results(ask, timeout=1000)
    assert programs == 2  # the step and its update, of all of these files
    for name, (found, text) in zip(names, reports, strict=True):
        assert found["fits"] and found["memory"]["temporaries"] > 0
        assert found["examples_a_replica"] * found["replicas"] == found["batch_size"]
        # As the file's header counts them.
        counted = (
            r"# Batch: (.*) = ([\d,]+) an update.\n# +([\d,]+ steps) x [\d,]+ = ([\d,]+ examples)"
        )
        parts, batch, steps, examples = re.search(counted, header(on_tpu.FILES[name])).groups()
        assert f"batch     {batch} = {parts}\n" in text
        assert f"{steps}, {examples}: at least" in text


# --- the command, and bad input ---


def run(topology, report, files=()):
    """What the command does with its flags, in this process."""
    flags = train_utils.ParseConfigOptions(experiment=EXPERIMENT, config_file=files)
    vars(flags).update(
        topology=topology, report=str(report), largest_batch=False, cache_dir=None,
        gin_file=[], gin_params=[], recipe=None, global_batch_size=None,
        per_replica_batch_size=None,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frontend.flags, "FLAGS", flags)
        return frontend.run()


@pytest.fixture
def taken(tmp_path):
    """A report of another run, which stays."""
    path = tmp_path / "report.json"
    path.write_text("mine")
    yield path
    assert path.read_text() == "mine"


def test_a_topology_that_is_not_known_is_refused_in_a_line(taken):
    with pytest.raises(SystemExit) as refusal:
        run("v7:4x4", taken)
    assert "TPU v7 is not known here. Known are v3:4x4" in refusal.value.code
    assert "\n" not in refusal.value.code


def test_a_report_into_no_folder_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="there is no folder .*/gone$"):
        run("v5e:2x2", tmp_path / "gone" / "report.json")


def test_a_report_in_the_place_of_another_is_refused(taken):
    with pytest.raises(SystemExit, match="exists: name another file"):
        run("v3:4x4", taken)


@pytest.fixture
def no_model(monkeypatch):
    def build(*_):
        raise AssertionError("the model was built")

    monkeypatch.setattr(step_programs.Steps, "__init__", build)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("topology", "train_steps", "words"),
    [
        (SMALL, None, r"36 examples cannot be dealt out to 8 replica.*of 32"),
        (roofline.topology("v3:3x5"), None, "none for libtpu"),
        (SMALL, 0, "train_steps is 0"),
    ],
    ids=["batch", "topology", "steps"],
)
def test_what_cannot_be_compiled_is_refused_before_the_model(topology, train_steps, words, records):
    params = experiment(records)
    params.task.train_data.global_batch_size = 36
    if train_steps is not None:
        params.trainer.train_steps = train_steps
    with pytest.raises(UserError, match=words):
        frontend.ask(params, topology, EXPERIMENT, **on_tpu.ALONE)


def test_an_experiment_that_cannot_be_built_says_why(records):
    params = experiment(records)
    params.task.model.encoder.bert.hidden_activation = "nonsense"
    with pytest.raises(UserError, match="the model of this experiment cannot be built: .*nonsense"):
        frontend.ask(params, SMALL, EXPERIMENT, **on_tpu.ALONE)


def test_metrics_that_cannot_be_built_say_why(records, monkeypatch):
    def refuse(self, training=None):
        raise RuntimeError("no such metric")

    params = experiment(records)
    monkeypatch.setattr(task_factory.get_task_cls(type(params.task)), "build_metrics", refuse)
    with pytest.raises(UserError, match="the metrics of this experiment cannot be built: no such"):
        frontend.ask(params, SMALL, EXPERIMENT, **on_tpu.ALONE)


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_a_report_or_refuses_in_one_line(records, tmp_path):
    def command(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "tf_lamb_extras.preflight.model_garden", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )

    path, file = tmp_path / "report.json", tmp_path / "tiny.yaml"
    file.write_text(json.dumps(settings_of(records)))
    done = command(
        f"--experiment={EXPERIMENT}", f"--config_file={file}", "--topology=v3:2x2",
        f"--report={path}", "--largest_batch=false",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = r"^compiling 4 examples \.\.\. [\d.]+ \wiB, \d+ s$"
    assert re.search(said, done.stderr, re.MULTILINE)
    assert f"{EXPERIMENT} on v3:2x2: 4 chips, 8 replicas" in done.stdout
    assert json.loads(path.read_text())["fits"] is True
    done = command(f"--experiment={EXPERIMENT}", "--topology=v7:4x4")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "TPU v7 is not known here" in done.stderr
