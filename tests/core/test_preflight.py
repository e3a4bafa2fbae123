"""Preflight's arithmetic: topologies, bounds, the search for a batch, and the report."""

import json

import pytest

from tf_lamb.core import recipes
from tf_lamb.tpu import report as preflight
from tf_lamb.tpu import roofline
from tf_lamb.tpu.search import largest

GIB = 2**30
SMALL = roofline.topology("v3:2x2")


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


def test_bounds_are_those_of_a_calculator():
    """On 4 chips of v3, each of two replicas and 123 Tops, 900 GB/s and 332 GB/s of links."""
    found = roofline.bounds(SMALL, flops=61.5e12, bytes_moved=45e9, reduced=1e9)
    assert found.compute == pytest.approx(1.0)
    assert found.memory == pytest.approx(0.1)
    assert found.network == pytest.approx(2 * 3 / 4 * 1e9 / (340e12 / 1024))
    assert (found.step, found.binding) == (found.compute, "compute")


def test_micro_batches_repeat_all_but_the_update():
    work = preflight.Work(100.0, 50.0, 10.0, 20.0, 7.0, 5.0).times(4)
    assert (work.flops, work.bytes_moved) == (100 + 3 * 90, 50 + 3 * 30)
    assert work.reduced == 7 + 3 * 2


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
