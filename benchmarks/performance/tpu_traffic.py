"""What the update alone reads from a TPU's memory and writes to it, beside its peers and the floor.

    python -m benchmarks.performance.tpu_traffic --log=benchmarks/logs/tpu_traffic.jsonl
    python -m benchmarks.performance.tpu_traffic --shapes=resnet50 --optimizer=lars --only=optax

No TPU is needed and nothing runs: libtpu compiles each update for one chip of five generations, and
the bytes are read from the compiled program. What stays in the chip's own memory costs nothing; the
padding of a layout is counted nowhere. Each contestant is a process of its own, which compiles for
one chip after the other; every program is a line of the log, and one that the log has is not
compiled again. A contestant that is not installed is skipped, and said so.

The floor is float32 arrays as large as the parameters, each read or written once:

    LAMB   7: g, w, m and v are read, w, m and v written; so are LANS's
    LARS   5: g, w and v are read, w and v written
    Muon   5 of a matrix: g, w and m are read, w and m written; 7 of all else, as LAMB's
    SOAP   7, and of a matrix its two factors and bases, each read and written: a renewal's step

A trust ratio is known only when all of a layer's update is, and no weight can be written before.
So a layer that the chip's own memory does not hold is passed over twice, by LANS three times:

    LAMB  10: g, w, m and v are read, m and v written; then w, m and v read, w written   10/7 = 1.43
    LANS  12: g is read; then as LAMB's, with g once more for its own part             12/7 = 1.71
    LARS   7: g and w are read; then g, w and v, and w and v written                      7/5 = 1.40

Products of matrices, Muon's and SOAP's, are beyond that: what of them the chip's memory does not
hold is moved again with each. A line of the log has their operations, too. Of SOAP's two branches
the compiler counts the dearer one. It is compiled for "layer_4mb" alone: longer sides take minutes.

A program that holds the layer between the passes needs the floor alone, or an array more where it
reads w again: 8/7 = 1.14, 6/5 = 1.20. `--shapes` has single layers that show both. XLA gives a v3
program 16 MB of the chip's memory, in which it keeps nothing between operations, and later chips
up to 128 MB, in which it does.

Contestants have the settings of the papers: LAMB with decay 0.01, LARS with 2e-4; nobody excludes a
variable. "skipping" is this package's default, which leaves a step out whose gradients are not
finite, and so has to see all of them first; the others take it, as all peers do.
"""

import functools
import importlib.metadata
import json
import math
import os
import subprocess
import sys
import tempfile
import time

from absl import app, flags

from benchmarks.performance import contestants
from benchmarks.performance.contestants import backend

CHIPS = {"v3": "v3:2x2", "v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
SHAPES = {
    **{name: contestants.SHAPES[name] for name in ("resnet50", "bert_large")},
    "layer_4mb": lambda: [(1024, 1024)],
    "layer_17mb": lambda: [(1024, 4096)],
    "layer_125mb": lambda: [(30522, 1024)],
}
FLOORS = {"lamb": 7, "lans": 7, "lars": 5, "muon": 7, "soap": 7}  # arrays
OF_A_MATRIX = 5  # of Muon's


# Optimizers with LARS; those with LAMB are `update.py`'s.


def lars_tf_keras(on_nonfinite="propagate"):
    import tf_lamb.tf_keras

    return tf_lamb.tf_keras.LARS(17.0, weight_decay=2e-4, on_nonfinite=on_nonfinite)


def lars_keras(on_nonfinite="propagate"):
    import tf_lamb.keras

    return tf_lamb.keras.LARS(17.0, weight_decay=2e-4, on_nonfinite=on_nonfinite)


def lars_model_garden():
    from official.modeling.optimization import lars

    return lars.LARS(17.0, weight_decay_rate=2e-4)


def lamb_optax():
    import optax

    return optax.lamb(1e-3, weight_decay=0.01)


def lars_optax():
    import optax

    return optax.lars(17.0, weight_decay=2e-4)


# Hosts: each takes shapes, and returns a function that compiles the update for a device.


def tensorflow(make_optimizer):
    """One program around `apply_gradients`, traced as `TPUStrategy` has it traced."""

    def build(shapes):
        import tensorflow as tf

        from tf_lamb_extras.preflight import step_programs_of_model_garden as step_programs
        from tf_lamb_extras.preflight.tpu import compiler

        optimizer = make_optimizer()
        weights = [contestants.tf_variable(tf.zeros(s), i) for i, s in enumerate(shapes)]
        # Model Garden's is a legacy optimizer.
        legacy = not hasattr(optimizer, "build")
        (optimizer._create_all_weights if legacy else optimizer.build)(weights)

        @tf.function(jit_compile=True)
        def step(gradients):
            optimizer.apply_gradients(zip(gradients, weights, strict=True))

        hlo = step_programs.hlo(step, [tf.zeros(s) for s in shapes])
        return lambda device: compiler.compile_hlo(hlo, device)

    return build


def keras(make_optimizer):
    """A stateless update of Keras on JAX, which takes weights and slots over."""

    def build(shapes):
        import numpy as np

        optimizer = make_optimizer()
        zeros = (np.zeros(s, np.float32) for s in shapes)
        variables = [contestants.keras_variable(w, i) for i, w in enumerate(zeros)]
        optimizer.build(variables)

        def update(gradients, weights, state):
            return optimizer.stateless_apply(state, gradients, weights)

        weights = [v.value for v in variables]
        return _jitted(update, weights, [v.value for v in optimizer.variables])

    return build


def optax(make_optimizer):
    """An update of optax that takes weights and slots over."""

    def build(shapes):
        import jax
        import optax

        optimizer = make_optimizer()
        weights = [jax.ShapeDtypeStruct(s, "float32") for s in shapes]

        def update(gradients, weights, state):
            updates, state = optimizer.update(gradients, state, weights)
            return optax.apply_updates(weights, updates), state

        return _jitted(update, weights, jax.eval_shape(optimizer.init, weights))

    return build


def _jitted(update, weights, state):
    import jax

    from tf_lamb_extras.preflight.tpu import compiler

    update = jax.jit(update, donate_argnums=(1, 2))

    def compile_for(device):
        sharding = jax.sharding.SingleDeviceSharding(device)
        arguments = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            (weights, weights, state),
        )
        return compiler.compile_lowered(update.lower(*arguments))

    return compile_for


def both(name, host, make_optimizer):
    """This package's update as peers take it, and by default."""
    return {
        name: host(make_optimizer),
        f"{name}, skipping": host(functools.partial(make_optimizer, "skip")),
    }


CONTESTANTS = {
    "lamb": {
        **both("tf_lamb.tf_keras", tensorflow, contestants.ours_tf_keras),
        **both("tf_lamb.keras on JAX", keras, contestants.ours_keras),
        "Model Garden": tensorflow(contestants.model_garden),
        "keras.optimizers.Lamb on JAX": keras(contestants.keras_lamb),
        "optax": optax(lamb_optax),
    },
    "lans": both("tf_lamb.tf_keras", tensorflow, contestants.lans_tf_keras),
    "muon": both("tf_lamb.tf_keras", tensorflow, contestants.muon_tf_keras),
    # The default on an accelerator is Cholesky's renewal, on a CPU Householder's.
    "soap": {
        f"tf_lamb.tf_keras, {renewal}": tensorflow(
            functools.partial(contestants.soap_tf_keras, renewal=renewal)
        )
        for renewal in ("cholesky", "qr")
    },
    "lars": {
        **both("tf_lamb.tf_keras", tensorflow, lars_tf_keras),
        **both("tf_lamb.keras on JAX", keras, lars_keras),
        "Model Garden": tensorflow(lars_model_garden),
        "optax": optax(lars_optax),
    },
}
NAMES = list(dict.fromkeys(name for each in CONTESTANTS.values() for name in each))


def floor_of(optimizer, shapes):
    """The bytes that an update cannot do without."""

    def arrays(shape):
        is_matrix = len(shape) > 1 and not contestants.is_table(shape)
        return OF_A_MATRIX if optimizer == "muon" and is_matrix else FLOORS[optimizer]

    floor = sum(4 * arrays(shape) * math.prod(shape) for shape in shapes)
    if optimizer == "soap":
        floor += sum(4 * 4 * side**2 for shape in shapes for side in shape)
    return floor


def contest(name, optimizer, shapes, chips):
    """What the compiler says for each chip, in this process; a line of JSON each."""
    from tf_lamb_extras.preflight.tpu import compiler, roofline

    compile_for = CONTESTANTS[optimizer][name](SHAPES[shapes]())
    floor = floor_of(optimizer, SHAPES[shapes]())
    for chip in chips:
        device = compiler.devices(roofline.topology(CHIPS[chip]))[0]
        start = time.perf_counter()
        program = compile_for(device)
        seconds = time.perf_counter() - start
        entry = {
            "name": name, "optimizer": optimizer, "shapes": shapes, "chip": chip,
            "ratio": round(program.bytes_moved / floor, 4), "bytes_moved": program.bytes_moved,
            "floor": floor, "flops": program.flops, "temporaries": program.temporaries,
            "seconds": round(seconds, 1), "versions": versions(),
        }  # fmt: skip
        print(json.dumps(entry), flush=True)


def versions():
    """Of what had a part in any program."""

    def version(name):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    names = ("libtpu", "jax", "tensorflow", "keras", "tf-keras", "tf-models-official", "optax")
    return {name: version(name) for name in names if version(name)}


def run(name, optimizer, shapes, chips):
    """One process, whose lines come as it compiles; none where the contestant is not installed."""
    environment = {
        **os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": backend(name),
        "JAX_PLATFORMS": "cpu",
    }  # fmt: skip
    command = [
        sys.executable, "-m", __spec__.name, f"--contestant={name}", f"--optimizer={optimizer}",
        f"--shapes={shapes}", *(f"--chips={chip}" for chip in chips),
    ]  # fmt: skip
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=said, text=True
        )
        with child:
            for line in child.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
        said.seek(0)
        errors = said.read()
    if child.returncode and "ModuleNotFoundError" not in errors:
        raise RuntimeError(f"{name}: {errors[-2000:]}")


def key(entry):
    """What a program is of."""
    return entry["optimizer"], entry["shapes"], entry["name"], entry["chip"]


def table(found, optimizer, shapes, chips):
    """Ratios to the floor, a row a contestant."""
    lines = [f"{optimizer.upper()}, {shapes}".ljust(34) + "".join(f"{chip:>8}" for chip in chips)]
    for name in CONTESTANTS[optimizer]:
        ratios = [found.get((optimizer, shapes, name, chip)) for chip in chips]
        if any(ratios):
            cells = (f"{ratio:8.3f}" if ratio else f"{'-':>8}" for ratio in ratios)
            lines.append(f"{name:34}" + "".join(cells))
    return "\n".join(lines)


def main(_):
    """One contestant, or all of them in turn."""
    args = flags.FLAGS
    if args.contestant:
        contest(args.contestant, args.optimizer[0], args.shapes[0], args.chips)
        return
    import tqdm

    found = {}
    if args.log and os.path.exists(args.log):
        with open(args.log) as file:
            found = {key(entry): entry["ratio"] for entry in map(json.loads, file)}
    todo = {
        (name, optimizer, shapes): missing
        for shapes in args.shapes
        for optimizer in args.optimizer
        for name in CONTESTANTS[optimizer]
        if not args.only or name in args.only
        if (optimizer, shapes) != ("muon", "layer_125mb")  # an embedding: there is no matrix
        if optimizer != "soap" or shapes == "layer_4mb"
        if (missing := [c for c in args.chips if (optimizer, shapes, name, c) not in found])
    }
    with tqdm.tqdm(total=sum(map(len, todo.values())), desc="programs", disable=None) as bar:
        for each, chips in todo.items():
            bar.set_postfix_str(", ".join(each))
            compiled = 0
            for entry in run(*each, chips):
                found[key(entry)] = entry["ratio"]
                if args.log:
                    with open(args.log, "a") as file:
                        file.write(json.dumps(entry) + "\n")
                bar.update()
                compiled += 1
            if not compiled:
                bar.write(f"skipped, not installed: {each[0]}")
    for shapes in args.shapes:
        for optimizer in args.optimizer:
            print(table(found, optimizer, shapes, args.chips), end="\n\n")


if __name__ == "__main__":
    flags.DEFINE_multi_enum("shapes", list(SHAPES), list(SHAPES), "Whose variables.")
    flags.DEFINE_multi_enum("optimizer", list(FLOORS), list(FLOORS), "Which optimizer.")
    flags.DEFINE_multi_enum("chips", list(CHIPS), list(CHIPS), "For which TPUs.")
    flags.DEFINE_multi_enum("only", None, NAMES, "These contestants alone.")
    flags.DEFINE_string("log", None, "Where every program is a line.")
    flags.DEFINE_enum("contestant", None, NAMES, "Compile this one, here.")
    app.run(main)
