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


def cases(peer):
    """What one peer did with the fixed gradients of `problem.py`, by case.

    A case has "rule" ("lamb", "lars" or "muon"), "arguments" (as the peer spells them; a learning
    rate of "schedule" stands for `problem.SCHEDULE`), "decayed" and "adapted" (the paths that the
    peer itself decayed and adapted), "config" (as the peer serializes it), "weights" (path -> array
    whose first axis is the step) and "slots" (slot -> the same).
    """
    return _read(peer)["cases"]


def models(peer):
    """What one peer did with the tiny model of `problem.py`, by case; optax has none.

    Besides what `cases` has: "gradients" (path -> array whose first axis is the step), "files"
    (kind -> path of what was saved after `problem.SAVED_AFTER` steps), and for Keras "state" (path
    of an optimizer variable -> its value then).
    """
    return _read(peer)["models"]


def versions(peer):
    """Distribution -> version, of everything that took part."""
    return _read(peer)["versions"]


def _read(peer):
    with np.load(HERE / f"{peer}.npz", allow_pickle=False) as archive:
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
        model["files"] = {kind: HERE / name for kind, name in model["files"].items()}
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


class Record:
    """What a peer has after each step."""

    def __init__(self):
        self._kept: dict = {"weights": {}}

    def keep(self, path, array, slot="weights"):
        """Notes the weight, or a slot, of a path."""
        by_path = self._kept.setdefault(slot, {})
        by_path.setdefault(path, []).append(np.array(array))

    def arrays(self):
        """The weights and slots of a case."""
        stacked = {
            slot: {path: np.stack(values) for path, values in by_path.items()}
            for slot, by_path in self._kept.items()
        }
        return {"weights": stacked.pop("weights"), "slots": stacked}


def write(peer, *, cases, models=None, distributions, archived=None):
    """Writes one peer's file into `output_folder`, and prints what it holds.

    `archived` are the versions of packages that are not installed.
    """
    arrays, about = {}, {"versions": {}, "problem": _problem_digest(), "cases": {}, "models": {}}
    about["versions"]["python"] = platform.python_version()
    about["versions"].update({name: metadata.version(name) for name in distributions})
    about["versions"].update(archived or {})
    for kind, table in (("cases", cases), ("models", models or {})):
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
    target = output_folder() / f"{peer}.npz"
    np.savez_compressed(target, about=np.array(text), **arrays)
    print(f"{target.name}: {target.stat().st_size} bytes, {json.dumps(about['versions'])}")


def output_folder():
    """The script's argument, or this folder."""
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    folder.mkdir(parents=True, exist_ok=True)
    return folder
