"""Reads and writes the golden files; the one place that knows their layout. NumPy only."""

import json
import pathlib
import platform
import sys
from importlib import metadata

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
PEERS = ("tensorflow_addons", "model_garden", "optax", "keras")
# Packages of which the weights alone are kept: `others.py`.
OTHERS = (
    "bitsandbytes", "colossalai", "deepspeed", "lightning_flash", "mxnet", "paddle",
    "pytorch_optimizer", "timm", "torch", "torch_optimizer",
)  # fmt: skip


def cases(peer, folder=HERE):
    """What one peer did with the fixed gradients of `problem.py`, by case.

    A case has "rule" ("lamb", "lars" or "muon"), "arguments" (as the peer spells them; a learning
    rate of "schedule" stands for `problem.SCHEDULE`), "decayed" and "adapted" (the paths that the
    peer itself decayed and adapted), "config" (as the peer serializes it), "weights" (path -> array
    whose first axis is the step) and "slots" (slot -> the same).
    """
    return _read(peer, folder)["cases"]


def models(peer, folder=HERE):
    """What one peer did with the tiny model of `problem.py`, by case; optax has none.

    Besides what `cases` has: "gradients" (path -> array whose first axis is the step), "files"
    (kind -> path of what was saved after `problem.SAVED_AFTER` steps), and for Keras "state" (path
    of an optimizer variable -> its value then).
    """
    return _read(peer, folder)["models"]


def versions(peer, folder=HERE):
    """Distribution -> version, of everything that took part."""
    return _read(peer, folder)["versions"]


def _read(peer, folder):
    from_here = pathlib.Path(folder)
    with np.load(from_here / f"{peer}.npz", allow_pickle=False) as archive:
        content = json.loads(str(archive["about"]))
        for key in archive.files:
            if key == "about":
                continue
            kind, case, group, *rest = key.split("/", 3)
            target = content[kind][case]
            if group == "state":
                target.setdefault("state", {})[rest[0]] = archive[key]
            elif group == "slots":
                unpacked = _unpack(archive[key], target["shapes"])
                target.setdefault("slots", {})[rest[0]] = unpacked
            else:
                target[group] = _unpack(archive[key], target["shapes"])
    if content["problem"] != _problem_digest():
        raise ValueError(
            f"{peer}.npz was made from another problem.py; make it again: make goldens"
        )
    for model in content["models"].values():
        model["files"] = {kind: from_here / name for kind, name in model["files"].items()}
    return content


def _pack(by_path):
    # One array a group: a zip entry for each variable would take more than its numbers do.
    return np.concatenate([array.reshape(len(array), -1) for array in by_path.values()], axis=1)


def _unpack(packed, shapes):
    by_path, start = {}, 0
    for path, shape in shapes.items():
        size = int(np.prod(shape))
        by_path[path] = packed[:, start : start + size].reshape(-1, *shape)
        start += size
    return by_path


def _problem_digest():
    # A script beside this file, or a test that imports the folder as a package.
    if __package__:
        from . import problem
    else:
        import problem
    return problem.digest()


def write(peer, folder, *, cases, models, distributions, archived=None):
    """Writes one peer's file, and prints what it holds; "files" are relative to the folder.

    `archived` are the versions of packages that are not installed.
    """
    arrays, about = {}, {"versions": {}, "problem": _problem_digest(), "cases": {}, "models": {}}
    about["versions"]["python"] = platform.python_version()
    about["versions"].update({name: metadata.version(name) for name in distributions})
    about["versions"].update(archived or {})
    for kind, table in (("cases", cases), ("models", models)):
        for name, case in table.items():
            shapes = {path: array.shape[1:] for path, array in case["weights"].items()}
            plain = {"shapes": shapes}
            for group, value in case.items():
                key = f"{kind}/{name}/{group}"
                if group == "slots":
                    arrays.update({f"{key}/{s}": _pack(by_path) for s, by_path in value.items()})
                elif group in ("weights", "gradients"):
                    arrays[key] = _pack(value)
                elif group == "state":
                    arrays.update({f"{key}/{path}": array for path, array in value.items()})
                else:
                    plain[group] = value
            about[kind][name] = plain
    # Peers leave NumPy scalars in their configs.
    text = json.dumps(about, default=lambda number: number.item())
    target = pathlib.Path(folder) / f"{peer}.npz"
    np.savez_compressed(target, about=np.array(text), **arrays)
    print(f"{target.name}: {target.stat().st_size} bytes, {json.dumps(about['versions'])}")
    for kind, table in (("case", cases), ("model", models)):
        for name, case in table.items():
            print(f"  {kind} {name}: {len(case['weights'])} variables, slots {list(case['slots'])}")


def output_folder():
    """The script's argument, or this folder."""
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    folder.mkdir(parents=True, exist_ok=True)
    return folder
