"""SOAP, KL-SOAP, and Muon at constant norms: prototypes, for the registered experiment.

    python -m benchmarks.equivalence --workload=flights --tuned --optimizer=benchmarks.soap:SOAP

What Muon takes for a matrix, they take for one; all else is AdamW's, at the same rate. They run on
JAX alone, and on kernels whose rows are their first axes: dense and convolutions. In the logs
they are `benchmarks.soap`, where they lay when the runs were made.
"""

import functools

import jax
import jax.numpy as jnp
import keras

import tf_lamb
from tf_lamb.core import layouts
from tf_lamb.core.rules.lamb import adamw
from tf_lamb.core.rules.muon import JORDAN, orthogonalized
from tf_lamb.core.rules.shared import norm

FALLBACK_BETA_2, EPSILON = 0.999, 1e-8


class _Prototype:
    """An optimizer as the loop of the registered experiment wants one.

    Args:
        learning_rate: A number; the loop gives that of a step.
        beta_1: Of the momentum, and of AdamW.
        weight_decay: Of what is no bias and belongs to no normalization.
        global_clipnorm: Of all gradients, or None.
    """

    def __init__(self, learning_rate, beta_1=0.95, weight_decay=0.0, global_clipnorm=None,
                 exclude_from_weight_decay=()):  # fmt: skip
        del exclude_from_weight_decay  # biases and normalizations, always
        self.learning_rate, self.beta_1 = learning_rate, beta_1
        self.weight_decay, self.clipnorm = weight_decay, global_clipnorm

    def build(self, variables):
        """Makes the state for these variables."""
        paths, shapes = [v.path for v in variables], [tuple(v.shape) for v in variables]
        found = [layouts.matrix(variable) for variable in layouts.make_variables(paths, shapes)]
        self.views = [each.view for each in found]
        self.decayed = [not each.description.endswith("bias or normalization") for each in found]
        state = [self._state(*each) for each in zip(shapes, self.views, strict=True)]
        leaves, self.tree = jax.tree.flatten(state)
        self._learning_rate = keras.Variable(self.learning_rate, trainable=False)
        self.calls = keras.Variable(0, trainable=False, dtype="int32")
        self.variables = [
            self._learning_rate, self.calls, *(keras.Variable(x, trainable=False) for x in leaves),
        ]  # fmt: skip

    def _state(self, shape, view):
        zeros = jnp.zeros(view or shape)
        return self.slots(zeros) if view else {"m": zeros, "v": zeros}

    def stateless_apply(self, slots, gradients, weights):
        """New weights and state."""
        lr, calls, *leaves = slots
        if self.clipnorm is not None:
            whole = norm(jnp, jnp.stack([norm(jnp, g) for g in gradients]))
            gradients = [g * jnp.minimum(1.0, self.clipnorm / (whole + 1e-7)) for g in gradients]
        new, kept = [], []
        state = jax.tree.unflatten(self.tree, leaves)
        for w, g, own, view, decayed in zip(
            weights, gradients, state, self.views, self.decayed, strict=True
        ):
            decay = self.weight_decay if decayed else 0.0
            if view is None:
                w, m, v = adamw(
                    jnp, g, w, own["m"], own["v"], lr=lr, t=calls + 1.0, decay=decay,
                    beta_1=self.beta_1, beta_2=FALLBACK_BETA_2, epsilon=EPSILON,
                )  # fmt: skip
                own = {"m": m, "v": v}
            else:
                matrix, own = self.step(g.reshape(view), w.reshape(view), own, lr, calls, decay)
                w = matrix.reshape(w.shape)
            new.append(w)
            kept.append(own)
        return new, [lr, calls + 1, *jax.tree.leaves(kept)]


class SOAP(_Prototype):
    """AdamW in the eigenbasis of Shampoo's two factors, which is renewed every ten steps.

    Source: Vyas et al., arXiv:2409.11321, and its authors' code for the order of operations: the
    first call makes the basis and moves no matrix, the decay comes after the step.
    """

    beta_2, renewed_every, kl = 0.95, 10, False

    def slots(self, zeros):
        rows, columns = zeros.shape
        left, right = jnp.zeros((rows, rows)), jnp.zeros((columns, columns))
        return {
            "m": zeros, "v": zeros, "factors": [left, right], "bases": [left, right],
            "spectra": [jnp.zeros(rows), jnp.zeros(columns)],
        }  # fmt: skip

    def step(self, g, w, own, lr, calls, decay):
        """The weight after a call, and its state."""
        begin = functools.partial(self._begin, g, w)
        advance = functools.partial(self._advance, g, w, lr=lr, t=calls, decay=decay)
        return jax.lax.cond(calls == 0, begin, advance, own)

    def _begin(self, g, w, own):
        """Makes the basis of the first gradient; the weight stays."""
        spectra, bases = [], []
        factors = [(1 - self.beta_2) * each for each in self._products(g, own, first=True)]
        for factor in factors:
            spectrum, basis = jnp.linalg.eigh(factor)
            spectra.append(spectrum[::-1])
            bases.append(basis[:, ::-1])
        return w, {**own, "factors": factors, "bases": bases, "spectra": spectra}

    def _advance(self, g, w, own, *, lr, t, decay):
        left, right = own["bases"]
        turned = left.T @ g @ right
        m = self.beta_1 * own["m"] + (1 - self.beta_1) * turned
        v = self.beta_2 * own["v"] + (1 - self.beta_2) * jnp.square(turned)
        u = left @ (m / (jnp.sqrt(v) + EPSILON)) @ right.T
        w = w - lr * jnp.sqrt(1 - self.beta_2**t) / (1 - self.beta_1**t) * u
        w = w - lr * decay * w
        factors = [
            self.beta_2 * factor + (1 - self.beta_2) * product
            for factor, product in zip(own["factors"], self._products(g, own), strict=True)
        ]
        own = {**own, "m": m, "v": v, "factors": factors}
        if self.kl:
            own["spectra"] = self._spectra(turned, own["spectra"])
        return w, jax.lax.cond(t % self.renewed_every == 0, self._renewed, lambda own: own, own)

    def _products(self, g, own, first=False):
        """G G' and G' G; of KL-SOAP, each with the inverse of the other factor between them."""
        if not self.kl:
            return g @ g.T, g.T @ g
        rows, columns = g.shape
        if first:
            return g @ g.T / columns, g.T @ g / rows
        halves = [basis * _root(spectrum) for basis, spectrum in
                  zip(own["bases"], own["spectra"], strict=True)]  # fmt: skip
        by_columns, by_rows = g @ halves[1], halves[0].T @ g
        return by_columns @ by_columns.T / columns, by_rows.T @ by_rows / rows

    def _spectra(self, turned, spectra):
        """The factors' eigenvalues, as they are followed between two renewals."""
        left, right = spectra
        seen = (
            jnp.mean(jnp.square(turned * _root(right)), 1),
            jnp.mean(jnp.square(turned * _root(left)[:, None]), 0),
        )
        return [self.beta_2 * old + (1 - self.beta_2) * new for old, new in
                zip(spectra, seen, strict=True)]  # fmt: skip

    def _renewed(self, own):
        """One power iteration; the momentum is turned, the second moment is put in order."""
        left, right = own["bases"]
        m, v, bases, spectra = left @ own["m"] @ right.T, own["v"], [], []
        for axis, (factor, basis, spectrum) in enumerate(
            zip(own["factors"], own["bases"], own["spectra"], strict=True)
        ):
            order = jnp.argsort(-jnp.einsum("ij,ik,kj->j", basis, factor, basis))
            v = jnp.take(v, order, axis)
            spectra.append(spectrum[order])
            bases.append(jnp.linalg.qr(factor @ basis[:, order])[0])
        return {**own, "m": bases[0].T @ m @ bases[1], "v": v, "bases": bases, "spectra": spectra}


class KLSOAP(SOAP):
    """SOAP whose factors minimize a Kullback-Leibler divergence together.

        L <- b L + (1 - b) G R^-1 G' / columns,      R likewise, with G' L^-1 G / rows

    Source: Lin et al., arXiv:2509.03378; the roots of the inverses are clamped as by its authors.
    """

    kl = True


class MuonH(_Prototype):
    """Muon whose step is `lr` times the norm that the matrix began with, which the matrix keeps.

        w <- |w_0| N(w - lr |w_0| N(O)),      N(x) = x / |x|,      O orthogonalized as by Muon

    Source: Wen et al., Hyperball optimization, 2025.
    """

    def slots(self, zeros):
        return {"m": zeros, "norm": jnp.zeros(())}

    def step(self, g, w, own, lr, calls, decay):
        """The weight after a call, and its state."""
        del decay  # its norm is constant
        kept = jnp.where(calls == 0, norm(jnp, w), own["norm"])
        m = self.beta_1 * own["m"] + g
        o = orthogonalized(jnp, g + self.beta_1 * m, [JORDAN] * 5)[0]
        w = w - lr * kept * o / (norm(jnp, o) + EPSILON)
        return w * kept / (norm(jnp, w) + EPSILON), {"m": m, "norm": kept}


def _root(spectrum):
    """One over the root of eigenvalues, clamped."""
    most = max(10, min(len(spectrum), 4000))
    positive = spectrum > 0
    return jnp.where(positive, jnp.minimum(jnp.where(positive, spectrum, 1.0) ** -0.5, most), 0.0)


class OfPackage(tf_lamb.SOAP):
    """What the package has, with its own beta_2: the experiment would give it AdamW's."""

    def __init__(self, learning_rate, beta_1=0.95, weight_decay=0.0, global_clipnorm=None,
                 exclude_from_weight_decay=()):  # fmt: skip
        super().__init__(
            learning_rate, beta_1=beta_1, weight_decay=weight_decay,
            global_clipnorm=global_clipnorm, exclude_from_weight_decay=exclude_from_weight_decay,
        )  # fmt: skip
