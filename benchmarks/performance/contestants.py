"""What `update.py` compares: each takes shapes, and returns a function that takes one step.

A contestant makes its weights, gradients and slots itself; one whose library is not installed
raises ModuleNotFoundError.
"""

import concurrent.futures
import functools
import itertools
import math
import os

CORES = len(os.sched_getaffinity(0))


def bert(layers, width, inner, vocabulary=30522):
    """The shapes of a BERT's variables, in order."""
    block = [(width, width), (width,)] * 4 + [(width,)] * 2
    block += [(width, inner), (inner,), (inner, width), (width,), (width,), (width,)]
    embeddings = [(vocabulary, width), (512, width), (2, width), (width,), (width,)]
    return embeddings + block * layers + [(width, width), (width,)]


def resnet50():
    """The shapes of ResNet-50's variables."""
    shapes, inputs = [(7, 7, 3, 64), (64,), (64,)], 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            if block == 0:
                shapes += [(1, 1, inputs, 4 * width), (4 * width,), (4 * width,)]
            shapes += [(1, 1, inputs, width), (width,), (width,)]
            shapes += [(3, 3, width, width), (width,), (width,)]
            shapes += [(1, 1, width, 4 * width), (4 * width,), (4 * width,)]
            inputs = 4 * width
    return [*shapes, (2048, 1000), (1000,)]


SHAPES = {
    "bert_base": lambda: bert(12, 768, 3072),
    "bert_large": lambda: bert(24, 1024, 4096),
    "bert_48_layers": lambda: bert(48, 256, 1024),
    "bert_12_layers": lambda: bert(12, 256, 1024),
    "resnet50": resnet50,
    "small_400": lambda: [(64, 64 + i % 8) if i % 2 else (64 + i % 8,) for i in range(400)],
}


def arrays(shapes):
    """A weight and a gradient for each shape; the same in every contestant."""
    import numpy as np

    random = np.random.default_rng(1)
    weights = [random.standard_normal(s, np.float32) * 0.02 for s in shapes]
    return weights, [random.standard_normal(s, np.float32) * 1e-3 for s in shapes]


# Optimizers, each with the settings of LAMB's paper.


def ours_tf_keras(on_nonfinite="propagate", **own):  # as all peers do
    import tf_lamb.tf_keras

    return tf_lamb.tf_keras.LAMB(1e-3, weight_decay=0.01, on_nonfinite=on_nonfinite, **own)


def one_by_one_tf_keras():
    """Small layers of one shape are not updated as one stack."""
    from tf_lamb.tensorflow import namespace

    namespace.STACK_MAX_ELEMENTS = 0
    return ours_tf_keras()


def lans_tf_keras(on_nonfinite="propagate"):
    import tf_lamb.tf_keras

    return tf_lamb.tf_keras.LANS(1e-3, weight_decay=0.01, on_nonfinite=on_nonfinite)


def muon_tf_keras(on_nonfinite="propagate"):
    import tf_lamb.tf_keras

    return tf_lamb.tf_keras.Muon(1e-3, weight_decay=0.01, on_nonfinite=on_nonfinite)


def soap_tf_keras(on_nonfinite="propagate", every=10, renewal=None):
    import tf_lamb.tf_keras

    return tf_lamb.tf_keras.SOAP(
        1e-3, weight_decay=0.01, on_nonfinite=on_nonfinite, precondition_frequency=every,
        form={"renewal": renewal},
    )  # fmt: skip


def ours_keras(on_nonfinite="propagate", **own):
    import tf_lamb.keras

    return tf_lamb.keras.LAMB(1e-3, weight_decay=0.01, on_nonfinite=on_nonfinite, **own)


def muon_keras():
    import tf_lamb.keras

    return tf_lamb.keras.Muon(1e-3, weight_decay=0.01, on_nonfinite="propagate")


def keras_adamw():
    import keras

    return keras.optimizers.AdamW(1e-3, weight_decay=0.01)


def model_garden():
    from official.modeling.optimization import lamb

    return lamb.LAMB(1e-3, weight_decay_rate=0.01)


def keras_lamb():
    import keras

    return keras.optimizers.Lamb(1e-3, weight_decay=0.01)


def timm(parameters):
    import timm.optim

    return timm.optim.Lamb(parameters, lr=1e-3, weight_decay=0.01, max_grad_norm=None)


def pytorch_optimizer(parameters):
    import pytorch_optimizer

    return pytorch_optimizer.Lamb(parameters, lr=1e-3, weight_decay=0.01)


def torch_adamw(parameters):
    import torch

    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


# Hosts.


def is_table(shape):
    """Whether it is one of BERT's embeddings, which Muon does not take for a matrix."""
    return len(shape) == 2 and shape[0] in (30522, 512, 2)


def tf_variable(w, i):
    import tensorflow as tf

    return tf.Variable(w, name=f"v{i}/{'embeddings' if is_table(w.shape) else 'kernel'}")


def keras_variable(w, i):
    import keras

    return keras.Variable(w, name=f"v{i}")


def tensorflow(make_optimizer, variable, jit_compile=False, strategy=""):
    """A `tf.function` around `apply_gradients`, as trainers have it."""

    def build(shapes):
        import tensorflow as tf

        distribution = {
            "": tf.distribute.get_strategy,
            "Mirrored": lambda: tf.distribute.MirroredStrategy(["CPU:0"]),
            "MultiWorkerMirrored": tf.distribute.MultiWorkerMirroredStrategy,
        }[strategy]()
        weights, gradients = arrays(shapes)
        with distribution.scope():
            optimizer = make_optimizer()
            weights = [variable(w, i) for i, w in enumerate(weights)]
            # Model Garden's is a legacy optimizer.
            legacy = not hasattr(optimizer, "build")
            (optimizer._create_all_weights if legacy else optimizer.build)(weights)
        gradients = [tf.constant(g) for g in gradients]

        def update():
            optimizer.apply_gradients(zip(gradients, weights, strict=True))

        @tf.function(jit_compile=jit_compile)
        def step():
            distribution.run(update)
            return tf.convert_to_tensor(optimizer.iterations)

        return lambda: step().numpy()

    return build


def optax(shapes):
    """optax's LAMB in one jitted function that takes the weights over."""
    import jax
    import optax

    weights, gradients = arrays(shapes)
    optimizer = optax.lamb(1e-3, weight_decay=0.01)
    held = [jax.device_put(weights), jax.jit(optimizer.init)(weights)]
    gradients = jax.device_put(gradients)

    @functools.partial(jax.jit, donate_argnums=(1, 2))
    def update(gradients, weights, state):
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state

    return _held(update, gradients, held)


def keras_on_jax(shapes, make=None, **own):
    """Keras 3 with the JAX backend, in one jitted function that takes the weights over."""
    import jax

    optimizer = (make or ours_keras)(**own)
    weights, gradients = arrays(shapes)
    variables = [keras_variable(w, i) for i, w in enumerate(weights)]
    optimizer.build(variables)
    held = [[v.value for v in variables], [v.value for v in optimizer.variables]]
    gradients = jax.device_put(gradients)

    @functools.partial(jax.jit, donate_argnums=(1, 2))
    def update(gradients, weights, state):
        return optimizer.stateless_apply(state, gradients, weights)

    return _held(update, gradients, held)


def _held(update, gradients, held):
    def step():
        import jax

        held[:] = update(gradients, *held)
        jax.block_until_ready(held)

    return step


def torch(make_optimizer, compiled=False):
    """torch on the CPU, eagerly or compiled."""

    def build(shapes):
        import torch

        torch.set_num_threads(CORES)
        weights, gradients = arrays(shapes)
        parameters = [torch.nn.Parameter(torch.from_numpy(w)) for w in weights]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.from_numpy(gradient)
        step = make_optimizer(parameters).step
        return torch.compile(step) if compiled else step

    return build


def floor(shapes):
    """Copies that read and write what an update must: gradient, weight and two slots are read
    once, all but the gradient written once; 3.5 copies of the parameters."""
    import numpy as np

    size = sum(map(math.prod, shapes))
    source, target = np.ones(size, np.float32), np.ones(size, np.float32)
    pool = concurrent.futures.ThreadPoolExecutor(CORES)

    def copy(end):
        ends = [end * i // CORES for i in range(CORES + 1)]
        parts = [slice(*pair) for pair in itertools.pairwise(ends)]
        list(pool.map(lambda part: np.copyto(target[part], source[part]), parts))

    def run():
        for end in (size, size, size, size // 2):
            copy(end)

    return run


# What an update multiplies and decomposes, almost without all else: about the least that its step
# can take. Muon's own step is a tenth faster than these products, in the order written here.


def muon_products(x):
    """Five iterations of three products."""
    import tensorflow as tf

    if x.shape[0] > x.shape[1]:
        x = tf.transpose(x)
    for _ in range(5):
        square = tf.matmul(x, x, transpose_b=True)
        x = square @ square @ x
        x /= tf.norm(x)
    return x


def soap_products(g):
    """The factors, the gradient and the momentum into the bases, and the update out of them."""
    import tensorflow as tf

    left = tf.matmul(g, g, transpose_b=True)
    right = tf.matmul(g, g, transpose_a=True)
    inside = [tf.matmul(left, x, transpose_a=True) @ right for x in (g, g + 1.0)]
    return tf.matmul(left @ tf.add_n(inside), right, transpose_b=True), left, right


def soap_renewal(g):
    """The products, and each factor times its basis with the QR decomposition of that."""
    import tensorflow as tf

    out, *factors = soap_products(g)
    return out, *[tf.linalg.qr(factor @ factor)[0] for factor in factors]


def products_alone(multiply):
    """Computes `multiply` of each matrix, in one `tf.function`."""

    def build(shapes):
        import tensorflow as tf

        _, gradients = arrays(shapes)
        matrices = [tf.constant(g) for g in gradients if g.ndim == 2 and not is_table(g.shape)]
        step = tf.function(lambda matrices: [multiply(x) for x in matrices], autograph=False)
        return lambda: step(matrices)

    return build


CONTESTANTS = {
    "floor": floor,
    "the products of Muon": products_alone(muon_products),
    "the products of SOAP": products_alone(soap_products),
    "the products and decompositions of SOAP": products_alone(soap_renewal),
    "tf_lamb.tf_keras": tensorflow(ours_tf_keras, tf_variable),
    "tf_lamb.tf_keras, one by one": tensorflow(one_by_one_tf_keras, tf_variable),
    "tf_lamb.keras": tensorflow(ours_keras, keras_variable),
    "tf_lamb.tf_keras LANS": tensorflow(lans_tf_keras, tf_variable),
    "tf_lamb.tf_keras Muon": tensorflow(muon_tf_keras, tf_variable),
    "tf_lamb.tf_keras SOAP": tensorflow(soap_tf_keras, tf_variable),
    "tf_lamb.tf_keras SOAP, renewing": tensorflow(
        functools.partial(soap_tf_keras, every=1), tf_variable
    ),
    "Model Garden LAMB": tensorflow(model_garden, tf_variable),
    "Model Garden LAMB, XLA": tensorflow(model_garden, tf_variable, jit_compile=True),
    "Keras Lamb": tensorflow(keras_lamb, keras_variable),
    "Keras Lamb, XLA": tensorflow(keras_lamb, keras_variable, jit_compile=True),
    "optax lamb, jitted": optax,
    "tf_lamb.keras on JAX, jitted": keras_on_jax,
    "tf_lamb.keras Muon on JAX, jitted": functools.partial(keras_on_jax, make=muon_keras),
    "Keras AdamW on JAX, jitted": functools.partial(keras_on_jax, make=keras_adamw),
    "timm Lamb": torch(timm),
    "timm Lamb, compiled": torch(timm, compiled=True),
    "pytorch_optimizer Lamb": torch(pytorch_optimizer),
    "torch AdamW, fused": torch(torch_adamw),
    "tf_lamb.tf_keras, MirroredStrategy": tensorflow(
        ours_tf_keras, tf_variable, strategy="Mirrored"
    ),
    "tf_lamb.tf_keras, MultiWorkerMirroredStrategy": tensorflow(
        ours_tf_keras, tf_variable, strategy="MultiWorkerMirrored"
    ),
    "tf_lamb.keras, MirroredStrategy": tensorflow(ours_keras, keras_variable, strategy="Mirrored"),
    "tf_lamb.tf_keras, skipping": tensorflow(functools.partial(ours_tf_keras, "skip"), tf_variable),
    "tf_lamb.keras, skipping": tensorflow(functools.partial(ours_keras, "skip"), keras_variable),
    "tf_lamb.keras on JAX, skipping": functools.partial(keras_on_jax, on_nonfinite="skip"),
    "tf_lamb.tf_keras, bfloat16 slots": tensorflow(
        functools.partial(ours_tf_keras, dtypes={"slots": "bfloat16"}), tf_variable
    ),
    "tf_lamb.keras on JAX, bfloat16 slots": functools.partial(
        keras_on_jax, dtypes={"slots": "bfloat16"}
    ),
}


def backend(name):
    """The backend that Keras needs for a contestant."""
    return "jax" if "JAX" in name else "tensorflow"


def needs_torch(name):
    """Whether the contestant runs on torch, which may have a Python of its own."""
    return name.startswith(("timm", "pytorch_optimizer", "torch"))
