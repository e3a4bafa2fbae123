"""Preflight's arithmetic: topologies, bounds, the search for a batch, the answers, the report."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_lamb_extras.preflight.tpu import answers, compiler, roofline
from tf_lamb_extras.preflight.tpu import report as preflight
from tf_lamb_extras.preflight.tpu.answers import largest

pytestmark = pytest.mark.once

GIB = 2**30
SMALL = roofline.topology("v3:2x2")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v2:2x2", "TPU v2 is not known"), ("v3", "GENERATION:SIZExSIZE"),
        ("v3:0x2", "GENERATION:SIZExSIZE"), ("v4:2x2", "3 dimensions"),
    ],
)  # fmt: skip
def test_what_is_no_topology_lists_those_that_are(name, says):
    with pytest.raises(ValueError, match=says) as error:
        roofline.topology(name)
    assert "v3:4x4, v4:4x4x4, v5e:4x4, v5p:4x4x4, v6e:4x4" in str(error.value)


def test_bounds_are_those_of_a_calculator():
    """On 4 chips of v3, each of two replicas and 123 Tops, 900 GB/s and 332 GB/s of links."""
    found = roofline.bounds(SMALL, flops=61.5e12, bytes_moved=45e9, reduced=1e9)
    assert found.compute == pytest.approx(1.0)
    assert found.memory == pytest.approx(0.1)
    assert found.network == pytest.approx(2 * 3 / 4 * 1e9 / (340e12 / 1024))
    assert (found.step, found.binding) == (found.compute, "compute")


BASE, AVAILABLE = 10.0, 100.05  # what lies there without examples, and what there is


def searched(needs, start):
    """What the search finds, and the batches that it asks for."""
    tried = []

    def ask(batch):
        assert batch > 0 and batch not in (start, *tried)
        tried.append(batch)
        return needs(batch)

    found = largest(ask, AVAILABLE, {0: BASE, start: needs(start)})
    assert len(tried) <= 3
    known = {batch: needs(batch) for batch in [start, *tried]}
    assert found.fits == max((b for b in known if known[b] <= AVAILABLE), default=0)
    assert found.too_large == min((b for b in known if known[b] > AVAILABLE), default=None)
    return found, tried


@pytest.mark.parametrize("constant", [0, 1, 20])
@pytest.mark.parametrize("slope", [0.003, 0.7, 8.0])
@pytest.mark.parametrize("start", [8, 32, 500, 1024])
def test_where_memory_is_affine_the_largest_batch_takes_three_compilations(start, slope, constant):
    needs = lambda batch: BASE + constant + slope * batch  # noqa: E731
    found, _ = searched(needs, start)
    assert needs(found.fits) <= AVAILABLE or found.fits == 0
    # If it is not proven, it is predicted.
    assert needs(found.predicted) <= AVAILABLE < needs(found.predicted + 1)


@given(
    start=st.integers(1, 4096),
    slope=st.floats(1e-4, 60),
    # What leads at small batches, where it is gradients; what the compiler computes again.
    flat=st.floats(0, 80),
    again=st.floats(1, 3),
    tile=st.sampled_from([1, 8, 128]),
)
def test_the_search_says_what_it_compiled_whatever_memory_does(start, slope, flat, again, tile):
    def needs(batch):
        line = BASE + max(flat, slope * tile * math.ceil(batch / tile))
        return min(line, AVAILABLE) if line <= again * AVAILABLE else line / again

    found, _ = searched(needs, start)
    if found.too_large is not None:
        assert found.fits <= found.predicted < found.too_large
    if needs(start) <= AVAILABLE:
        assert found.fits >= start


class Compiler:
    """Programs whose memory is affine in the batch; it counts them."""

    slots = 2.0 * GIB

    def __init__(self, weights=1.0 * GIB):
        self.weights, self.compiled, self._each = weights, [], 0.1 * GIB

    def step(self, examples):
        self.compiled.append(examples)
        needed = 3.0 * GIB + self._each * examples
        if needed > SMALL.chip.memory:
            raise compiler.TooLarge(needed, SMALL.chip.memory)
        return compiler.Program(3 * GIB, 0, 0, self._each * examples, 8e12, 45e9, ())

    def update(self):
        self.compiled.append("update")
        return compiler.Program(3 * GIB, 0, 0, 0, 1e12, 9e9, ())

    def network(self, _):
        return 1e9, 1e9, None


def question(share=32):
    return preflight.Report("a model", SMALL, 8 * share, 1, steps=3600, compiler="libtpu 0")


def test_what_it_says_and_how_many_compilations_that_takes():
    steps = Compiler()
    found = answers.ask_compiler(question(), steps, largest_batch=True)
    assert steps.compiled == [32, "update", 124, 125]
    assert found.fits and found.work.update_bytes == 9e9
    assert found.hours == pytest.approx(3600 * found.bounds.step / 3600)
    assert (found.largest, found.too_large, found.predicted) == (124, 125, 124)


def test_a_step_that_compiles_fits_even_if_its_weights_do_not_seem_to():
    """The memory that there is may be rounded down, and the compiler may drop a variable."""
    steps = Compiler(weights=2 * SMALL.chip.memory)
    found = answers.ask_compiler(question(), steps, largest_batch=True)
    assert found.fits and found.largest >= 32


def test_of_a_batch_that_does_not_fit_micro_batches_are_named_that_do():
    steps = Compiler()
    found = answers.ask_compiler(question(1024), steps, largest_batch=True)
    assert not found.fits and found.needed > SMALL.chip.memory
    assert steps.compiled[0] == 1024 and "update" not in steps.compiled
    assert found.largest == 124 and found.needed_micro_batches == 16
    assert "gradient_accumulation_steps=16, 64 examples at once" in str(found)


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
    large = report(memory=None, needed=20.48 * GIB, work=None, largest=40, too_large=41)
    assert "20.48 GiB of 15.48 GiB a replica: it does not fit, by 5.00 GiB" in str(large)
    assert "at most 40 examples a replica fit: 320 in all" in str(large)
    # 128 in as few equal parts as are no larger than 40.
    assert "gradient_accumulation_steps=4, 32 examples at once" in str(large)
    assert not large.fits and large.as_dict()["needed_micro_batches"] == 4
    not_one = report(memory=None, needed=1e12, work=None, largest=0, too_large=1)
    assert "not even one" in str(not_one)
    assert "refuses this step: no" in str(report(memory=None, needed=None, work=None, refused="no"))


@pytest.mark.parametrize(
    ("largest", "too_large", "predicted", "says"),
    [
        (130, 131, 130, "at most 130 examples a replica fit: 1,040 in all"),
        (130, 200, 140, "at least 130 examples a replica fit: 1,040 in all"),
        (130, 200, 140, "200 examples do not, and between them nothing was compiled; 140 should"),
        (0, 16, 5, "the batches that were compiled none fits, down to 16 examples; 5 should"),
    ],
)
def test_what_was_not_compiled_is_not_claimed(largest, too_large, predicted, says):
    found = report(largest=largest, too_large=too_large, predicted=predicted)
    assert says in str(found)
    assert found.as_dict()["too_large_examples_a_replica"] == too_large
