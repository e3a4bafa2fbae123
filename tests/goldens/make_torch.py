"""Goldens of the packages for PyTorch: see torch.txt.

ColossalAI, DeepSpeed and Lightning Flash need devices or old packages before they import; of these
the one file that computes the step is run, from the archive of the release, with empty modules in
place of what it imports and does not need on one CPU.
"""

import importlib.util
import pathlib
import sys
import tarfile
import types
import zipfile

import bitsandbytes
import load
import numpy as np
import others
import problem
import pytorch_optimizer
import torch
import torch_optimizer

ARCHIVES = pathlib.Path(sys.prefix) / "archives"
ARCHIVED = {"colossalai": "0.5.0", "deepspeed": "0.18.0", "lightning_flash": "0.8.2"}
(TIMM,) = importlib.util.find_spec("timm").submodule_search_locations
ONE_CPU = {
    "colossalai.interface.optimizer": {"DistributedOptim": torch.optim.Optimizer},
    "colossalai.tensor.d_tensor": {"is_distributed_tensor": lambda tensor: False},
    "deepspeed": {},
    "deepspeed.comm": {"is_initialized": lambda: True, "get_rank": lambda: 0},
    "deepspeed.utils.torch": {"required_torch_version": lambda **_: True},
    "deepspeed.accelerator": {"get_accelerator": lambda: types.SimpleNamespace(empty_cache=str)},
    "deepspeed.runtime.comm.mpi": {"MpiBackend": lambda _: types.SimpleNamespace(size=1)},
    "flash.core.utilities.imports": {"_TOPIC_CORE_AVAILABLE": True},
    # timm's models need torchvision: of it, too, the optimizers alone are imported.
    "timm": {"__path__": [TIMM]},
    "timm.optim": {"__path__": [f"{TIMM}/optim"]},
}
for name, content in ONE_CPU.items():
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)
sys.modules["deepspeed"].comm = sys.modules["deepspeed.comm"]


def one_file(package, member):
    """The names of one Python file of a package's archive, run by itself."""
    (path,) = ARCHIVES.glob(f"{package}-{ARCHIVED[package]}*")
    if path.suffix == ".whl":
        source = zipfile.ZipFile(path).read(member)
    else:
        inside = f"{path.name.removesuffix('.tar.gz')}/{member}"
        with tarfile.open(path) as archive:
            source = archive.extractfile(inside).read()
    names = {"__name__": member}
    exec(compile(source, member, "exec"), names)
    return types.SimpleNamespace(**names)


def timm_class(kind):
    return getattr(importlib.import_module(f"timm.optim.{kind.lower()}"), kind)


def colossal(name, kind):
    return getattr(one_file("colossalai", f"colossalai/nn/optimizer/{name}.py"), kind)


def flash(name, kind):
    return getattr(one_file("lightning_flash", f"flash/core/optimizers/{name}.py"), kind)


def distributed_lamb(groups, **arguments):
    optimizer = colossal("distributed_lamb", "DistributedLamb")(groups, **arguments)
    optimizer.setup_distributed()
    return optimizer


def onebit_lamb(groups, **arguments):
    module = one_file("deepspeed", "deepspeed/runtime/fp16/onebit/lamb.py")
    optimizer = module.OnebitLamb(groups, comm_backend_name="mpi", **arguments)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer.step()  # the first call is for its buffers, and moves nothing
    assert all(map(torch.equal, before, parameters))
    return optimizer


LARS = {"momentum": 0.9, "trust_coeff": others.TRUST}
MATRIX = {"only": ("encoder/dense/kernel", "encoder/embedding/embeddings")}
# Package -> case -> rule, optimizer, arguments. All have decay, but for the excluded.
PACKAGES = {
    "timm": {
        "lamb": ("lamb", timm_class("Lamb"), {}),
        "lamb_trust_clip": (
            "lamb",
            timm_class("Lamb"),
            {"trust_clip": True, "always_adapt": True, "max_grad_norm": None},
        ),
        "lamb_decoupled": ("lamb", timm_class("Lamb"), {"decoupled_decay": True}),
        "lars": ("lars", timm_class("Lars"), LARS),
        "lars_trust_clip": ("lars", timm_class("Lars"), LARS | {"trust_clip": True}),
    },
    "pytorch_optimizer": {
        "lamb": ("lamb", pytorch_optimizer.Lamb, {}),
        "lamb_coupled": ("lamb", pytorch_optimizer.Lamb, {"weight_decouple": False}),
        "lars": ("lars", pytorch_optimizer.LARS, {"trust_coefficient": others.TRUST}),
    },
    "torch_optimizer": {
        "lamb": ("lamb", torch_optimizer.Lamb, {}),
        "lamb_debias": ("lamb", torch_optimizer.Lamb, {"debias": True}),
    },
    "bitsandbytes": {
        "lamb_no_decay": ("lamb", bitsandbytes.optim.LAMB, {"weight_decay": 0.0}),
        "lamb": ("lamb", bitsandbytes.optim.LAMB, {}),
        "lars": ("lars", bitsandbytes.optim.LARS, {"momentum": 0.9}),
    },
    "colossalai": {
        "lamb": ("lamb", colossal("lamb", "Lamb"), {}),
        "distributed_lamb": ("lamb", distributed_lamb, {}),
        "lars": ("lars", colossal("lars", "Lars"), {"momentum": 0.9, "eeta": others.TRUST}),
    },
    "deepspeed": {"onebit_lamb": ("lamb", onebit_lamb, {})},
    "lightning_flash": {
        "lamb": ("lamb", flash("lamb", "LAMB"), {}),
        "lars": (
            "lars",
            flash("lars", "LARS"),
            {"momentum": 0.9, "trust_coefficient": others.TRUST},
        ),
    },
    "torch": {
        "muon": ("muon", torch.optim.Muon, MATRIX),
        "muon_adamw": ("muon", torch.optim.Muon, MATRIX | {"adjust_lr_fn": "match_rms_adamw"}),
    },
}


def run(rule, optimizer_class, arguments):
    """Ten steps; a matrix of Muon is turned, for PyTorch keeps outputs first."""
    arguments = dict(arguments)
    paths = arguments.pop("only", tuple(problem.START))
    turn = np.transpose if rule == "muon" else np.asarray
    parameters = {
        path: torch.nn.Parameter(torch.tensor(turn(problem.START[path]).copy())) for path in paths
    }
    decay = arguments.pop("weight_decay", others.DECAY)
    groups = [
        {"params": [p for path, p in parameters.items() if (path in others.EXCLUDED) == excluded],
         "weight_decay": 0.0 if excluded else decay}
        for excluded in (False, True)
    ]  # fmt: skip
    rate = problem.LEARNING_RATE["lars" if rule == "lars" else "lamb"]
    groups = [group for group in groups if group["params"]]
    optimizer = optimizer_class(groups, lr=rate, **arguments)

    def step(rate, gradients):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for path, gradient in gradients.items():
            parameters[path].grad = torch.tensor(turn(gradient).copy())
        optimizer.step()

    def read(path):
        return turn(parameters[path].detach().numpy())

    recorded = {"weight_decay": decay, **arguments}
    return others.case(rule, recorded, read, step, paths)


def main():
    torch.set_num_threads(1)
    for package, cases in PACKAGES.items():
        made = {name: run(*case) for name, case in cases.items()}
        archived = {package: ARCHIVED[package]} if package in ARCHIVED else {}
        installed = [] if archived or package == "torch" else [package]
        distributions = [*installed, "torch", "numpy"]
        load.write(package, cases=made, distributions=distributions, archived=archived)


if __name__ == "__main__":
    main()
