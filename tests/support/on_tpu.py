"""The files of `model_garden_configs` for TPUs, as the TPU's compiler sees them: no TPU is needed.

What compiles large programs runs in a process of its own, which gives back what that has taken.
"""

import contextlib
import hashlib
import re
from unittest import mock

from support import garden
from support.configs import YAMLS, experiment_of, header, parsed

from tf_lamb_extras.preflight import model_garden as preflight
from tf_lamb_extras.preflight import step_programs_of_model_garden as step_programs
from tf_lamb_extras.preflight.tpu import compiler, roofline

SMALL = roofline.topology("v3:2x2")
FILES = {name.removesuffix("_tpu.yaml"): path for name, path in YAMLS.items() if "_tpu" in name}
# Of equal program at one size; another batch a replica or another length is another program.
EQUAL = [
    ["bert_large_32k", "bert_large_4k", "bert_large_64k_32k_stage1"],
    ["bert_large_512"],
    ["bert_large_64k_32k_stage2"],
    ["resnet50_conadv_96k"],
    ["resnet50_lamb_32k", "resnet50_lamb_8k"],
    ["resnet50_lars_32k", "resnet50_lars_8k"],
]
# Much smaller, for libtpu takes minutes over a wide layer and a large picture.
_NARROW = {
    "num_layers": 1, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4,
}  # fmt: skip
_LESS = {
    "bert": {"encoder": {"bert": _NARROW}},
    "resn": {
        "backbone": {"resnet": {"model_id": 10, "depth_multiplier": 0.25}},
        "input_size": [64, 64, 3],
    },
}


def fingerprint(hlo):
    """Of XLA's own text for that, in which names do not count; nor do numbers such as a rate."""
    from jaxlib import _hlo, xla_client

    module = xla_client.XlaComputation(hlo).get_hlo_module()
    text = module.to_string(_hlo.HloPrintOptions.fingerprint())
    text = re.sub(r"constant\((?!(?:0|1|true|false|-?inf|nan)\))[^(){}]*\)", "constant(#)", text)
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def each_once(known):
    """Has the compiler compile what is not known yet, by fingerprint and kind of device."""
    compile_ = compiler.compile_hlo

    def once(hlo, device):
        key = fingerprint(hlo), device.device_kind
        if key not in known:
            try:
                known[key] = compile_(hlo, device)
            except compiler.TooLarge as error:
                known[key] = error
        if isinstance(known[key], compiler.TooLarge):
            raise known[key]
        return known[key]

    with mock.patch.object(compiler, "compile_hlo", once):
        yield


def _topology_of(path):
    """The one that its header names: v3-2048 (32x32 chips)."""
    return roofline.topology("v3:" + header(path).split("(", 1)[1].split(" chips")[0])


def silent(*_, **__):
    """Says nothing of what takes long."""


# A question of this batch alone.
ALONE = {"largest_batch": False, "say": silent}


def reports(names):
    """How many programs were compiled for these files, made small; each one's report."""
    known, found = {}, []
    with each_once(known):
        for name in names:
            path = FILES[name]
            params = parsed(path).replace(task={"model": _LESS[name[:4]]})
            report = preflight.ask(params, _topology_of(path), experiment_of(path), **ALONE)
            found.append((report.as_dict(), str(report)))
    return len(known), found


def small(settings, experiment):
    """The report on a few chips, as plain numbers."""
    params = garden.build(settings, experiment)
    return preflight.ask(params, SMALL, experiment, **ALONE).as_dict()


def accounts_on_a_cpu(hlo):
    """Operations and bytes of a program: as this package says, and as XLA of what runs."""
    import jax
    from jaxlib import _jax, xla_client

    cpu = jax.devices("cpu")[0]
    program = compiler.compile_hlo(hlo(), cpu)
    ran = xla_client.XlaComputation(hlo(stage="optimized_hlo_serialized"))
    truth = _jax.hlo_module_cost_analysis(cpu.client, ran.get_hlo_module())
    return [program.flops, program.bytes_moved], [truth["flops"], truth["bytes accessed"]]


def too_large(settings, experiment):
    """A report on a batch that does not fit, and whether what it names does and does not, alone.

    Either is compiled for itself only if it is another program than what the report saw.
    """
    params = garden.build(settings, experiment)
    with each_once({}):
        report = preflight.ask(params, SMALL, experiment, **ALONE | {"largest_batch": True})
        steps, device = step_programs.Steps(params), compiler.devices(SMALL)[0]
        memory = compiler.compile_hlo(steps.step(report.largest), device).memory
        try:
            compiler.compile_hlo(steps.step(report.too_large), device)
        except compiler.TooLarge:
            return report.fits, report.needed, str(report), memory, True
        return report.fits, report.needed, str(report), memory, False
