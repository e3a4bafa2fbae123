"""Who looks for a name of another package is told what serves instead."""

import copy
import subprocess
import sys

import keras
import pytest
import tf_keras
from support.frontends import FRONTENDS, every_frontend

import tf_lamb
from tf_lamb.api import elsewhere

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("AdamW", "'AdamW': write keras.optimizers.AdamW."),
        ("Lion", "write keras.optimizers.Lion."),
        ("AdamWeightDecay", "write keras.optimizers.AdamW."),
        ("SGDW", "write keras.optimizers.SGD with weight_decay."),
        ("optimizers", "write tf_lamb.LAMB."),
        ("MuonWithAuxAdam", "write tf_lamb.Muon, which leaves to AdamW what is no matrix."),
        ("SingleDeviceMuonWithAuxAdam", "which leaves to AdamW what is no matrix."),
        ("LARC", "write tf_lamb.LARS(form={'momentum': 'mixed', 'clip': True})."),
        ("Shampoo", "write tf_lamb.SOAP, which is Adam in the bases of Shampoo's preconditioners."),
        ("NovoGrad", "neither this package nor Keras has it."),
        ("FusedNovoGrad", "neither this package nor Keras has it."),
        ("FusedLAMB", "Did you mean 'LAMB'?"),
        ("LARSOptimizer", "Did you mean 'LARS'?"),
        ("NorMuon",
         "'NorMuon': it is another algorithm, which is not here; tf_lamb.Muon is the one that "
         "it varies."),
        ("AdaMuon", "it is another algorithm, which is not here; tf_lamb.Muon is the one that "
         "it varies."),
        ("OnebitLamb", "not here; tf_lamb.LAMB is the one that it varies."),
        ("LambdaLR", "has no attribute 'LambdaLR'"),
    ],
)  # fmt: skip
def test_an_optimizer_of_another_package_is_answered(name, answer, monkeypatch):
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    with pytest.raises(AttributeError) as caught:
        getattr(tf_lamb, name)
    assert str(caught.value).endswith(answer)


@every_frontend
def test_each_frontend_names_its_own_keras(frontend):
    ours = FRONTENDS[frontend][1]
    with pytest.raises(AttributeError, match=f"AdamW': write {frontend}.optimizers.AdamW.$"):
        ours.AdamW  # noqa: B018
    with pytest.raises(AttributeError, match=f"write tf_lamb.{frontend}.LAMB.$"):
        ours.optimizers  # noqa: B018
    with pytest.raises(AttributeError, match="Did you mean 'LAMB'?"):
        ours.Lamb  # noqa: B018


@pytest.mark.parametrize("module", ["tf_lamb", "tf_lamb.keras"])
def test_what_was_probably_meant_is_asked_once(module):
    code = f"import {module}\n{module}.Lamb"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stderr.count("Did you mean") == 1 and answer.stderr.endswith("'LAMB'?\n")


@every_frontend
def test_what_is_recommended_of_keras_is_there(frontend):
    host = FRONTENDS[frontend][0]
    names = {
        text.partition("optimizers.")[2].partition(" ")[0]
        for text in elsewhere._OPTIMIZERS.values()
        if "{keras}" in text
    }
    assert "AdamW" in names and all(hasattr(host.optimizers, name) for name in names)


@every_frontend
@pytest.mark.parametrize("name", elsewhere._MEMBERS)
def test_a_member_of_other_packages_is_answered(frontend, name):
    host, ours = FRONTENDS[frontend]
    if hasattr(host.optimizers.Adam(), name):
        pytest.skip(f"{frontend} has it")
    assert not hasattr(ours.LAMB(), name)
    with pytest.raises(AttributeError, match=f"'LAMB' object has no attribute '{name}': "):
        getattr(ours.LAMB(), name)


@every_frontend
def test_an_optimizer_that_wraps_another_answers_too(frontend):
    ours = FRONTENDS[frontend][1]
    with pytest.raises(AttributeError, match="no attribute 'state_dict': variables has the state"):
        ours.MeasureNoise(ours.LAMB(gradient_accumulation_steps=2)).state_dict()


@every_frontend
def test_a_member_that_no_one_has_gets_pythons_own_error(frontend):
    optimizer = FRONTENDS[frontend][1].LAMB()
    with pytest.raises(AttributeError, match="'LAMB' object has no attribute 'colour'$"):
        optimizer.colour  # noqa: B018


@every_frontend
def test_a_property_that_fails_keeps_its_error(frontend):
    class Mine(FRONTENDS[frontend][1].LAMB):
        @property
        def colour(self):
            return self.missing

    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        Mine().colour  # noqa: B018


def test_an_optimizer_can_be_copied():
    assert copy.deepcopy(tf_lamb.keras.LAMB(0.5)).get_config()["learning_rate"] == 0.5


def test_lr_is_tf_keras_own_and_is_set_without_effect_in_keras_3():
    """As with the optimizers of the two."""
    theirs, ours = tf_keras.optimizers.Adam(0.5), tf_lamb.tf_keras.LAMB(0.5)
    assert float(theirs.lr) == float(ours.lr) == 0.5
    for optimizer in (keras.optimizers.Adam(0.5), tf_lamb.keras.LAMB(0.5)):
        optimizer.lr = 0.1
        assert optimizer.lr == 0.1 and float(optimizer.learning_rate) == 0.5
