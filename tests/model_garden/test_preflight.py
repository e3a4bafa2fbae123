"""Preflight: its arithmetic, what it reads of compiled programs, and real experiments."""

import json
import math
import os
import subprocess
import sys

import pytest

pytest.importorskip("official")
pytest.importorskip("libtpu")

import tensorflow as tf
from support.garden import EXPERIMENT, ROOT, build, optimizer, tiny
from test_configs import YAMLS, experiment_of, header

from tf_lamb.core import preflight, recipes, roofline
from tf_lamb.core.preflight import largest
from tf_lamb.model_garden import preflight as door
from tf_lamb.model_garden import step_programs
from tf_lamb.model_garden.parsing import UserError
from tf_lamb.tpu import compiler, programs

GIB = 2**30
SMALL = roofline.topology("v3:2x2")


def silent(_):
    pass


# --- the arithmetic ---


def test_a_topology_counts_chips_and_replicas():
    pod = roofline.topology("v3:32x32")
    assert (pod.chips, pod.replicas, str(pod)) == (1024, 2048, "v3:32x32")
    assert roofline.topology("v4:4x4x2").replicas == 32  # both cores are one


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v2:2x2", "TPU v2 is not known"), ("v9:4x4x4", "TPU v9 is not known"),
        ("v3", "GENERATION:SIZExSIZE"), ("v3:", "GENERATION:SIZExSIZE"),
        ("v3:0x2", "GENERATION:SIZExSIZE"), ("v4:2x2", "3 dimensions"),
        ("v3:twoxtwo", "GENERATION:SIZExSIZE"),
    ],
)  # fmt: skip
def test_what_is_no_topology_lists_those_that_are(name, says):
    with pytest.raises(ValueError, match=says) as error:
        roofline.topology(name)
    assert "v3:4x4, v4:4x4x4, v5e:4x4, v5p:4x4x4, v6e:4x4" in str(error.value)


def test_a_shape_that_the_compiler_does_not_know_is_refused_in_its_words():
    with pytest.raises(ValueError, match=r"'v3:3x5' is none for libtpu: .*not divisible"):
        compiler.devices(roofline.topology("v3:3x5"))


@pytest.mark.parametrize("name", roofline.CHIPS)
def test_the_compiler_knows_every_chip_as_the_table_does(name):
    """As many replicas a chip, and as much memory: the compiler's refusal says how much it has."""
    import jax

    chip = roofline.CHIPS[name]
    smallest = roofline.topology(f"{name}:{'x'.join(['2', '2', '1'][: chip.dimensions])}")
    devices = compiler.devices(smallest)
    assert len(devices) == smallest.replicas
    place = jax.sharding.SingleDeviceSharding(devices[0])
    x = jax.ShapeDtypeStruct((2 * int(chip.memory) // 4096, 1024), "float32", sharding=place)
    with pytest.raises(compiler.TooLarge) as error:
        compiler.compile_lowered(jax.jit(lambda x: (x + 1) @ x.T).lower(x))
    assert error.value.available == pytest.approx(chip.memory, rel=1e-9)


def test_bounds_are_those_of_a_calculator():
    """On 4 chips of v3, each of two replicas and 123 Tops, 900 GB/s and 332 GB/s of links."""
    found = roofline.bounds(SMALL, flops=61.5e12, bytes_moved=45e9, reduced=1e9)
    assert found.compute == pytest.approx(1.0)
    assert found.memory == pytest.approx(0.1)
    assert found.network == pytest.approx(2 * 3 / 4 * 1e9 / (340e12 / 1024))
    assert (found.step, found.binding) == (found.compute, "compute")


def test_micro_batches_repeat_all_but_the_update():
    work = preflight.Work(100.0, 50.0, 10.0, 20.0, 7.0).times(4)
    assert (work.flops, work.bytes_moved, work.reduced) == (100 + 3 * 90, 50 + 3 * 30, 28)


@pytest.mark.parametrize("again", [1.0, 1.5], ids=["line", "computed again"])
@pytest.mark.parametrize("start", [1, 32, 500])
@pytest.mark.parametrize("slope", [0.003, 0.7, 40.0])
def test_the_search_ends_at_the_last_batch_that_fits(slope, start, again):
    asked = []

    def needs(batch):
        asked.append(batch)
        line = 10 + slope * batch
        return 99.0 if 100 < line < 100 * again else line  # a compiler that makes it fit

    found = largest(needs, 100, start)
    assert len(asked) == len(set(asked)) <= (6 if again == 1 else 40)
    assert needs(found + 1) > 100 and (found == 0 or needs(found) <= 100)
    assert (found == 0) == (needs(1) > 100)


def report(**changes):
    memory = preflight.Memory(1 * GIB, 2 * GIB, 0, 5 * GIB, SMALL.chip.memory)
    work = preflight.Work(6.15e12, 45e9, 1e9, 9e9, 1e9)
    fields = {
        "subject": "a model", "topology": SMALL, "batch_size": 1024, "memory": memory,
        "needed": memory.needed, "work": work, "steps": 3600, "compiler": "libtpu 0",
    }  # fmt: skip
    return preflight.Report(**fields | changes)


def test_a_report_is_a_table_and_json():
    text, facts = str(report()), json.loads(json.dumps(report().as_dict()))
    assert "1,024 = 128 examples x 8 replicas x 1 micro-batch" in text
    assert "8.00 GiB of 15.48 GiB a replica: 7.48 GiB are left" in text
    assert "at least 100 ms" in text and facts["binding"] in ("compute", "memory")
    assert "the update is 0.0% of the operations and 20% of the bytes" in text
    assert "3,686,400 examples: at least 6 minutes, 0.4 chip-hours" in text
    assert facts["chip_hours"] == pytest.approx(0.4)
    assert facts["examples_a_replica"] == 128


def test_a_report_on_what_does_not_fit_says_by_how_much_and_what_does():
    large = report(memory=None, needed=20.48 * GIB, work=None, largest=40)
    assert "20.48 GiB of 15.48 GiB a replica: it does not fit, by 5.00 GiB" in str(large)
    assert "at most 40 examples a replica fit: 320 in all" in str(large)
    # 128 in as few equal parts as are no larger than 40.
    assert "gradient_accumulation_steps=4, 32 examples at once" in str(large)
    assert not large.fits and large.as_dict()["needed_micro_batches"] == 4
    assert "not even one" in str(report(memory=None, needed=1e12, work=None, largest=0))
    assert "refuses this step: no" in str(report(memory=None, needed=None, work=None, refused="no"))


def test_the_published_time_is_of_the_published_run():
    assert "76.19 minutes" in recipes.published_time("BERT", 65536, 7037)
    assert "76.19 minutes" in recipes.published_time("BERT", 32768, 1562)
    assert recipes.published_time("ResNet-50", 65536, 7037) is None
    assert recipes.published_time("BERT", 65536, 7038) is None


# --- reading compiled programs ---

TEXT = """HloModule m

%fused (p0: f32[100,8], p1: s32[]) -> f32[1,8] {
  %p0 = f32[100,8]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  ROOT %d = f32[1,8]{1,0} dynamic-slice(%p0, %p1, %p1), dynamic_slice_sizes={1,8}
}

%yes (a: f32[64]) -> f32[64] {
  %a = f32[64]{0} parameter(0)
  ROOT %n = f32[64]{0} negate(%a)
}

%no (b: f32[64]) -> f32[64] {
  ROOT %b = f32[64]{0} parameter(0)
}

ENTRY %main (x: f32[100,8], i: s32[], y: f32[64], q: pred[]) -> f32[64] {
  %x = f32[100,8]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %y = f32[64]{0} parameter(2)
  %q = pred[] parameter(3)
  %row = f32[1,8]{1,0} fusion(%x, %i), kind=kLoop, calls=%fused
  %near = (f32[64]{0:S(1)}, f32[64]{0}, u32[]{:S(2)}) copy-start(%y)
  %here = f32[64]{0:S(1)} copy-done(%near)
  %twice = f32[64]{0:S(1)} add(%here, %here)
  %sum = f32[64]{0} all-reduce(%y), replica_groups={}, to_apply=%no
  ROOT %c = f32[64]{0} conditional(%q, %sum, %sum), true_computation=%yes, false_computation=%no
}
"""


def test_only_what_passes_the_edge_of_the_chip_is_moved():
    # A row of the table read and written, its index, y to the chip, the sum there and back, and
    # the dearer branch. What is added on the chip costs nothing.
    expected = (32 + 32 + 4) + 256 + (256 + 256) + (256 + 256)
    assert programs.Text(TEXT).bytes_moved() == expected
    assert programs.Text(TEXT).collectives() == {"all-reduce": (1, 256)}


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


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ("memory required for HLO temporaries (20.50G) exceeds available HBM (15.48G).", 20.5),
        ("Used 15.48G of 15.48G hbm. Exceeded hbm capacity by 512.00M.", 15.98),
    ],
)
def test_both_ways_of_saying_that_it_is_too_large_are_read(message, needed):
    with pytest.raises(compiler.TooLarge) as error, compiler._refusals():
        raise RuntimeError(f"RESOURCE_EXHAUSTED: {message}")
    assert error.value.needed == pytest.approx(needed * GIB)
    assert error.value.available == pytest.approx(15.48 * GIB)


def test_what_the_compiler_refuses_is_named_with_its_layer():
    message = (
        "UNIMPLEMENTED: too many indices. This error occurred for %scatter.1 = f32[9]{0} "
        'scatter(%a, %b), metadata={op_name="model/embedding/Gather" source_line=3}.'
    )
    says = "scatter of model/embedding/Gather: UNIMPLEMENTED"
    with pytest.raises(compiler.Refused, match=says), compiler._refusals():
        raise RuntimeError(message)


def test_what_xla_has_no_program_for_is_named_with_its_layer():
    @tf.function(jit_compile=True)
    def step(x):
        with tf.name_scope("my_layer"):
            return tf.strings.length(tf.strings.as_string(x))

    with pytest.raises(UserError, match="AsString of my_layer/AsString"):
        step_programs.hlo(step, tf.ones([2]))


# --- experiments ---


def experiment(records, replicas=8, examples=4, **fields):
    settings = tiny(records)
    settings["task"]["train_data"]["global_batch_size"] = replicas * examples
    settings["trainer"]["optimizer_config"].update(optimizer(**fields))
    return build(settings)


def test_what_an_experiment_keeps_is_counted(records):
    params = experiment(records)
    found = door.ask(params, SMALL, EXPERIMENT, search=False, say=silent)
    steps = step_programs.Steps(params)
    count = sum(math.prod(w.shape) for w in steps._model.variables)
    assert found.memory.weights == 4 * count
    assert found.memory.slots >= 8 * count  # both moments, and some scalars
    assert found.memory.slots < 8 * count + 100
    assert found.work.reduced == 4 * count
    assert 0 < found.work.update_flops < found.work.flops
    assert 0 < found.work.update_bytes < found.work.bytes_moved
    assert found.fits and found.memory.left == found.memory.available - found.needed > 0


def test_on_a_cpu_the_same_road_says_what_xla_says_of_the_program_that_runs(records):
    """Within 10 %: operations, and bytes as this package reads them."""
    import jax
    from jaxlib import _jax, xla_client

    steps = step_programs.Steps(experiment(records))
    cpu = jax.devices("cpu")[0]
    program = compiler.compile_hlo(steps.step(4), cpu)
    ran = xla_client.XlaComputation(steps.step(4, stage="optimized_hlo_serialized"))
    truth = _jax.hlo_module_cost_analysis(cpu.client, ran.get_hlo_module())
    assert program.flops == pytest.approx(truth["flops"], rel=0.1)
    assert program.bytes_moved == pytest.approx(truth["bytes accessed"], rel=0.1)


def test_accumulation_is_in_the_report(records):
    found = door.ask(
        experiment(records, gradient_accumulation_steps=2), SMALL, EXPERIMENT, say=silent,
        search=False,
    )  # fmt: skip
    assert (found.micro_batches, found.share) == (2, 2)
    assert found.memory.slots > 2.9 * found.memory.weights  # two moments and an accumulator


@pytest.mark.slow
def test_too_large_names_what_fits_and_it_does(records):
    settings = tiny(records)
    encoder = settings["task"]["model"]["encoder"]["bert"]
    encoder |= {"intermediate_size": 2**16, "max_position_embeddings": 512}
    settings["task"]["train_data"] |= {"seq_length": 512, "global_batch_size": 8 * 100}
    found = door.ask(build(settings), SMALL, EXPERIMENT, say=silent)
    assert not found.fits and found.needed > SMALL.chip.memory
    assert "it does not fit, by" in str(found) and "gradient_accumulation_steps=" in str(found)
    steps = step_programs.Steps(build(settings))
    device = compiler.devices(SMALL)[0]
    assert compiler.compile_hlo(steps.step(found.largest), device).memory <= SMALL.chip.memory
    with pytest.raises(compiler.TooLarge):
        compiler.compile_hlo(steps.step(found.largest + 1), device)


ON_TPU = [path for name, path in YAMLS.items() if name.endswith("_tpu.yaml")]


def topology_of(path):
    """The one that its header names: v3-2048 (32x32 chips)."""
    return roofline.topology("v3:" + header(path).split("(", 1)[1].split(" chips")[0])


def command(*arguments):
    """In a process of its own, which gives back what compiling has taken."""
    return subprocess.run(
        [sys.executable, "-m", "tf_lamb.model_garden.preflight", *arguments],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("path", ON_TPU, ids=map(os.path.basename, ON_TPU))
def test_every_tpu_configuration_passes_at_its_own_topology(path, tmp_path):
    """At a reduced depth; at full depth in benchmarks/preflight.py."""
    less = "encoder.bert.num_layers=1" if "bert" in path else "backbone.resnet.model_id=18"
    done = command(
        f"--experiment={experiment_of(path)}", f"--config_file={path}", "--nosearch",
        f"--topology={topology_of(path)}", f"--params_override=task.model.{less}",
        f"--report={tmp_path / 'report.json'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["fits"] and found["memory"]["temporaries"] > 0
    assert found["examples_a_replica"] * found["replicas"] == found["batch_size"]
    assert ("published" in done.stdout) == ("64k_32k" in path)


# --- bad input ---


def test_the_command_refuses_before_it_builds_anything(tmp_path):
    taken = tmp_path / "report.json"
    taken.write_text("mine")
    done = command(f"--experiment={EXPERIMENT}", "--topology=v7:4x4")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "TPU v7 is not known here. Known are v3:4x4" in done.stderr
    done = command(f"--experiment={EXPERIMENT}", "--topology=v3:4x4", f"--report={taken}")
    assert done.returncode == 1 and "exists: name another file" in done.stderr
    assert taken.read_text() == "mine"


def test_without_libtpu_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"jax and libtpu.*pip install 'tf_lamb\[preflight\]'"):
        compiler.require()


@pytest.fixture
def no_model(monkeypatch):
    def build(*_):
        raise AssertionError("the model was built")

    monkeypatch.setattr(step_programs.Steps, "__init__", build)


@pytest.mark.usefixtures("no_model")
def test_a_batch_that_the_replicas_do_not_divide_is_refused_before_the_model(records):
    params = experiment(records)
    params.task.train_data.global_batch_size = 36
    with pytest.raises(UserError, match=r"36 examples cannot be dealt out to 8 replica.*of 32"):
        door.ask(params, SMALL, EXPERIMENT, say=silent)
    with pytest.raises(UserError, match="none for libtpu"):
        door.ask(params, roofline.topology("v3:3x5"), EXPERIMENT, say=silent)
    params.trainer.train_steps = 0
    with pytest.raises(UserError, match="train_steps is 0"):
        door.ask(params, SMALL, EXPERIMENT, say=silent)


def test_an_experiment_that_cannot_be_built_says_why(records):
    params = experiment(records)
    params.task.model.encoder.bert.hidden_activation = "nonsense"
    with pytest.raises(UserError, match="the model of this experiment cannot be built: .*nonsense"):
        door.ask(params, SMALL, EXPERIMENT, search=False, say=silent)


def test_the_command_prints_a_table_and_writes_a_report(records, tmp_path):
    settings = tmp_path / "tiny.yaml"
    settings.write_text(json.dumps(tiny(records)))
    path = tmp_path / "report.json"
    done = command(
        f"--experiment={EXPERIMENT}", f"--config_file={settings}", "--topology=v3:2x2",
        f"--report={path}", "--nosearch",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "compiled 1 examples" in done.stderr
    assert f"{EXPERIMENT} on v3:2x2: 4 chips, 8 replicas" in done.stdout
    assert json.loads(path.read_text())["fits"] is True
