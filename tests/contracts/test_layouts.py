"""Loaded state goes to the layer that it belongs to, whatever layers are called or frozen."""

import numpy as np
import pytest
from support.frontends import FRONTENDS, array, every_frontend, on_tensorflow

from tf_lamb.api.variables import names_of


def compiled(frontend, model, name="LAMB"):
    host, ours = FRONTENDS[frontend]
    model.compile(getattr(ours, name)(0.1), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def mark(model):
    """Has m of each trained variable hold a number of its own; by place in the model."""
    marks = {}
    for i, variable in enumerate(model.trainable_variables):
        slot = model.optimizer.state_of(i)["m"]
        slot.assign(np.full(slot.shape, i + 1, "float32"))
        marks[id(variable)] = i + 1
    return [marks.get(id(v)) for v in model.weights]


def marks(model):
    """What `mark` has left, of each variable of the model; None where it is not trained."""
    found = {
        id(v): array(model.optimizer.state_of(i)["m"]).ravel()[0]
        for i, v in enumerate(model.trainable_variables)
    }
    return [found.get(id(v)) for v in model.weights]


def new_session(frontend):
    """As a new process has it: layers are numbered from the beginning."""
    FRONTENDS[frontend][0].backend.clear_session()


def towers(frontend, order):
    """Two towers of one shape, joined as query and document, built in this order."""
    host, _ = FRONTENDS[frontend]
    new_session(frontend)

    def tower():
        return host.Sequential([host.Input((3,)), host.layers.Dense(3), host.layers.Dense(3)])

    parts = {part: tower() for part in order}
    query, document = host.Input((3,)), host.Input((3,))
    dot = host.layers.Dot(1)([parts["query"](query), parts["document"](document)])
    return compiled(frontend, host.Model([query, document], dot))


def stack(frontend, frozen=(), before=0, name="LAMB"):
    """Three layers of one shape, after others were built; those at `frozen` are not trained."""
    host, _ = FRONTENDS[frontend]
    new_session(frontend)
    for _ in range(before):
        host.layers.Dense(3).build((None, 3))
    layers = [host.layers.Dense(3) for _ in range(3)]
    outputs = inputs = host.Input((3,))
    for layer in layers:
        outputs = layer(outputs)
    model = host.Model(inputs, outputs)
    for i in frozen:
        layers[i].trainable = False
    return compiled(frontend, model, name)


def of_attributes(frontend, order):
    """A model whose layers are attributes, which are set in this order."""
    host, _ = FRONTENDS[frontend]
    new_session(frontend)

    class Towers(host.Model):
        def __init__(self):
            super().__init__()
            for part in order:
                setattr(self, part, host.layers.Dense(3))

        def call(self, inputs):
            return self.decoder(inputs) * self.encoder(inputs)

    model = Towers()
    model(np.zeros((1, 3), "float32"))
    return compiled(frontend, model)


def through_weights(first, second, folder):
    path = str(folder / "model.weights.h5")
    first.save_weights(path)
    second.load_weights(path)


def through_checkpoint(first, second, folder):
    import tensorflow as tf

    path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).save(folder / "checkpoint")
    new = tf.train.Checkpoint(model=second, optimizer=second.optimizer)
    new.restore(path).expect_partial()


THROUGH = [
    through_weights,
    pytest.param(through_checkpoint, marks=on_tensorflow),
]
every_way = pytest.mark.parametrize("through", THROUGH)


def of_layer(model, part):
    layer = getattr(model, part)
    positions = {id(v): i for i, v in enumerate(model.trainable_variables)}
    kernel = next(v for v in layer.weights if len(v.shape) == 2)
    return array(model.optimizer.state_of(positions[id(kernel)])["m"]).ravel()[0]


@every_frontend
def test_towers_that_are_built_in_another_order_keep_their_state(frontend, tmp_path):
    first, second = (
        towers(frontend, order) for order in (["query", "document"], ["document", "query"])
    )
    expected = mark(first)
    through_weights(first, second, tmp_path)
    assert marks(second) == expected and len(set(expected)) == 8


@every_frontend
@every_way
def test_attributes_that_are_set_in_another_order_keep_their_state(frontend, through, tmp_path):
    first = of_attributes(frontend, ["encoder", "decoder"])
    second = of_attributes(frontend, ["decoder", "encoder"])
    mark(first)
    through(first, second, tmp_path)
    for part in ("encoder", "decoder"):
        assert of_layer(second, part) == of_layer(first, part) > 0
    assert of_layer(first, "encoder") != of_layer(first, "decoder")


@every_frontend
@every_way
@pytest.mark.parametrize("frozen", [[0], [2], [0, 1]])
@pytest.mark.parametrize("before", [0, 1])
def test_layers_that_are_frozen_later_move_no_state(frontend, through, frozen, before, tmp_path):
    first, second = stack(frontend), stack(frontend, frozen, before)
    expected = mark(first)
    through(first, second, tmp_path)
    for i in frozen:
        expected[2 * i] = expected[2 * i + 1] = None
    assert marks(second) == expected


@every_frontend
@every_way
def test_a_layer_without_state_in_the_file_is_refused(frontend, through, tmp_path):
    first, second = stack(frontend, [0]), stack(frontend)
    mark(first)
    before = marks(second), int(second.optimizer.iterations)
    lacks = names_of(second.trainable_variables)[0]
    with pytest.raises(ValueError, match=f"of 4 variables, and of the 6 here it lacks '{lacks}'"):
        through(first, second, tmp_path)
    assert (marks(second), int(second.optimizer.iterations)) == before


@every_frontend
def test_a_layer_that_is_added_in_front_is_no_guess(frontend, tmp_path):
    """Its names are those of other layers: dense here is not the file's."""
    host, _ = FRONTENDS[frontend]
    first = stack(frontend)
    mark(first)
    first.optimizer.save_own_variables(store := {})
    new_session(frontend)
    layers = [host.layers.Dense(3) for _ in range(4)]
    layers[0].trainable = layers[3].trainable = False
    outputs = inputs = host.Input((3,))
    for layer in layers:
        outputs = layer(outputs)
    second = compiled(frontend, host.Model(inputs, outputs))
    with pytest.raises(
        ValueError, match="'dense_1/kernel' here may be 'dense.*' or 'dense.*' of it"
    ):
        second.optimizer.load_own_variables(store)


@on_tensorflow
@every_frontend
def test_a_checkpoint_restored_before_the_build_finds_its_layers(frontend, tmp_path):
    import tensorflow as tf

    first, second = stack(frontend), stack(frontend, [0])
    expected = mark(first)
    path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).save(tmp_path / "checkpoint")
    second.compile(FRONTENDS[frontend][1].LAMB(0.1), "mse")
    new = tf.train.Checkpoint(model=second, optimizer=second.optimizer)
    new.restore(path).expect_partial()
    second.optimizer.build(second.trainable_variables)
    assert marks(second) == [None, None, *expected[2:]]


def uncompiled_pair(frontend, frozen):
    """A loop of one's own: the optimizer is told of variables alone."""
    model = stack(frontend, frozen)
    optimizer = FRONTENDS[frontend][1].LAMB(0.1)
    optimizer.build(model.trainable_variables)
    return model, optimizer


@on_tensorflow
@every_frontend
def test_a_loop_of_ones_own_that_freezes_a_layer_is_refused_before_a_value_changes(
    frontend, tmp_path
):
    import tensorflow as tf

    model, optimizer = uncompiled_pair(frontend, [])
    path = tf.train.Checkpoint(model=model, optimizer=optimizer).save(tmp_path / "checkpoint")
    model, optimizer = uncompiled_pair(frontend, [0])
    before = [array(v) for v in model.weights]
    with pytest.raises(ValueError, match=r"may be 'dense.* model.compile\(optimizer=...\)"):
        tf.train.Checkpoint(model=model, optimizer=optimizer).restore(path)
    for variable, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(array(variable), value)


def without_layout(model):
    """What a file of before holds of the optimizer."""
    model.optimizer.save_own_variables(store := {})
    del store["layout"]
    return store


@every_frontend
@pytest.mark.parametrize("before", [0, 1])
def test_a_file_of_before_loads_into_the_same_layers(frontend, before):
    first, second = stack(frontend), stack(frontend, before=before)
    expected = mark(first)
    second.optimizer.load_own_variables(without_layout(first))
    assert marks(second) == expected


@every_frontend
def test_a_file_of_before_is_refused_where_layers_may_be_others(frontend):
    first, second = stack(frontend), stack(frontend, [2], before=1)
    mark(first)
    with pytest.raises(ValueError, match="'dense_1/kernel' here may be"):
        second.optimizer.load_own_variables(without_layout(first))


@every_frontend
def test_a_file_of_before_goes_by_names_that_no_numbers_tell_apart(frontend):
    host, _ = FRONTENDS[frontend]
    new_session(frontend)
    layers = [host.layers.Dense(3, name=name) for name in ("body", "neck", "head")]
    first = compiled(frontend, host.Sequential([host.Input((3,)), *layers]))
    expected = mark(first)
    store = without_layout(first)
    layers[0].trainable = False
    compiled(frontend, first)
    first.optimizer.load_own_variables(store)
    assert marks(first) == [None, None, *expected[2:]]


@every_frontend
@pytest.mark.parametrize("wrap", ["AdaScale", "MeasureNoise"])
def test_what_was_measured_says_that_it_is_loaded_too_early(frontend, wrap):
    host, ours = FRONTENDS[frontend]

    def measuring():
        inner = ours.LAMB(0.1, gradient_accumulation_steps=2)
        return ours.AdaScale(inner, 2.0) if wrap == "AdaScale" else ours.MeasureNoise(inner)

    model = stack(frontend)
    model.compile(measuring(), "mse")
    model.optimizer.build(model.trainable_variables)
    model.optimizer.save_own_variables(store := {})
    with pytest.warns(UserWarning, match="has no slots yet: build.*begins at step 0"):
        measuring().load_own_variables(store)
