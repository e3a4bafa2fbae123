"""Scripts that `python -m tf_lamb.adopt` rewrites: what it writes, what it says, what it leaves."""

import pathlib
import re
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tf_keras
from support import migrating

import tf_lamb
from tf_lamb.adopt import attributes
from tf_lamb.adopt.__main__ import main
from tf_lamb.adopt.script import Adopted, adopt

pytestmark = pytest.mark.once


def call(text, **how):
    """The last line of a script, rewritten."""
    return adopt(text, **how).code.splitlines()[-1]


def notes(text, **how):
    return "\n".join(map(str, adopt(text, **how).notes))


ADDONS = "import tensorflow_addons as tfa\n"
KERAS = "import keras\n"
GARDEN = "import tensorflow_models as tfm\n"
CONFIG = "from official.modeling import optimization\n"


@pytest.mark.parametrize(
    "before, after",
    [
        (ADDONS + "tfa.optimizers.LAMB()", "tf_lamb.LAMB()"),
        (ADDONS + "tfa.optimizers.LAMB(weight_decay_rate=wd)", "tf_lamb.LAMB(weight_decay=wd)"),
        (ADDONS + "tfa.optimizers.LAMB(lr=1e-3)", "tf_lamb.LAMB(learning_rate=1e-3)"),
        (ADDONS + "tfa.optimizers.LAMB(1e-3, 0.9)", "tf_lamb.LAMB(1e-3, beta_1=0.9)"),
        (
            ADDONS + "tfa.optimizers.LAMB(1e-3, exclude_from_layer_adaptation=[])",
            "tf_lamb.LAMB(1e-3)",
        ),
        (
            "import tensorflow as tf\ntf.keras.Model\n"
            + ADDONS
            + "tfa.optimizers.LAMB(0.1, decay=DECAY)",
            "tf_lamb.LAMB(learning_rate="
            "tf.keras.optimizers.schedules.InverseTimeDecay(0.1, 1, DECAY))",
        ),
        (KERAS + "keras.optimizers.Lamb(1e-3)", "tf_lamb.keras.LAMB(1e-3)"),
        (KERAS + "keras.optimizers.Lamb(**config)", "tf_lamb.keras.LAMB(**config)"),
        (
            "import tensorflow as tf\ntf.keras.optimizers.Lamb(clipvalue=3)",
            "tf_lamb.LAMB(clipvalue=3)",
        ),
        ("from tensorflow import keras\nkeras.optimizers.Lamb()", "tf_lamb.LAMB()"),
        (
            KERAS + "keras.optimizers.Muon(1e-4, ns_steps=6, weight_decay=None)",
            "tf_lamb.keras.Muon(1e-4, form={'newton_schulz_steps': 6}, weight_decay=None)",
        ),
        (
            KERAS + "keras.optimizers.Muon(exclude_layers=NAMES)",
            "tf_lamb.keras.Muon(exclude_from_layer_adaptation=[*(NAMES or []), 'embedding'])",
        ),
        (
            GARDEN + "tfm.optimization.lars.LARS(0.5, eeta=ETA)",
            "tf_lamb.LARS(0.5, trust_coefficient=ETA)",
        ),
        (
            "import tf_keras\n" + GARDEN + "tfm.optimization.lamb.LAMB(0.5)",
            "tf_lamb.tf_keras.LAMB(0.5)",
        ),
        (
            CONFIG + "optimization.OptimizationConfig({'optimizer': {'type': 'lamb'}})",
            "optimization.OptimizationConfig({'optimizer': {'type': 'tf_lamb'}})",
        ),
        (
            CONFIG + "optimization.OptimizerConfig({'type': 'lars', 'lars': {'eeta': x}})",
            "optimization.OptimizerConfig({'type': 'tf_lars', "
            "'tf_lars': {'trust_coefficient': x}})",
        ),
        (
            CONFIG + "optimization.OptimizerConfig(type='lamb', lamb={'weight_decay_rate': x})",
            'optimization.OptimizerConfig({"type": "tf_lamb", "tf_lamb": {"weight_decay": x}})',
        ),
    ],
)
def test_a_call_is_written_in_our_words(before, after):
    assert call(before) == after


@pytest.mark.parametrize(
    "before, after",
    [
        (
            KERAS + "keras.optimizers.Lamb()",
            "tf_lamb.keras.LAMB(learning_rate=0.001, epsilon=1e-07)",
        ),
        (
            KERAS + "keras.optimizers.Lamb(1e-3, weight_decay=wd)",
            "tf_lamb.keras.LAMB(1e-3, weight_decay=wd, epsilon=1e-07, "
            "weight_decay_mode='decoupled')",
        ),
        (
            KERAS + "keras.optimizers.Muon()",
            "tf_lamb.keras.Muon(weight_decay=0.004, epsilon=1e-07)",
        ),
        (
            GARDEN + "tfm.optimization.lars.LARS(0.5, weight_decay_rate=wd)",
            "tf_lamb.LARS(0.5, weight_decay=wd, form={'denominator': 'norm_of_sum'})",
        ),
        (GARDEN + "tfm.optimization.lars.LARS(0.5)", "tf_lamb.LARS(0.5)"),
        (ADDONS + "tfa.optimizers.LAMB(0.5)", "tf_lamb.LAMB(0.5)"),
    ],
)
def test_the_steps_of_before_are_kept_on_demand(before, after):
    assert call(before, same_steps=True) == after


@pytest.mark.parametrize(
    "before, said",
    [
        ("keras.optimizers.Lamb()", "epsilon was 1e-07, and is 1e-06 here. Pass epsilon=1e-07 to"),
        (
            "keras.optimizers.Lamb()",
            "learning_rate was 0.001, and is 0.01 here. Pass learning_rate",
        ),
        ("keras.optimizers.Lamb(weight_decay=0.1)", "Weight decay was outside of the trust ratio"),
        (
            "keras.optimizers.Lamb(gradient_accumulation_steps=4)",
            "schedules count updates here, and micro-batches in Keras: divide the steps of",
        ),
        (
            "keras.optimizers.Lamb().exclude_from_weight_decay(var_names=['bias'])",
            "also lose their trust ratio here. Pass exclude_from_layer_adaptation=[] to keep it.",
        ),
        ("keras.optimizers.Lamb(**config)", "Arguments passed by ** are not read"),
        ("keras.optimizers.Muon()", "weight_decay was 0.004, and is 0.0 here"),
        ("keras.optimizers.Muon()", "Kernels of convolutions and of attention are matrices here"),
    ],
)
def test_what_is_computed_otherwise_is_said(before, said):
    assert said in notes(KERAS + before)


@pytest.mark.parametrize(
    "arguments, count",
    [
        ("gradient_accumulation_steps=2", 1),
        ("gradient_accumulation_steps=2, use_ema=True", 2),
        ("gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=4", 3),
        ("use_ema=True, ema_overwrite_frequency=4", 0),
    ],
)
def test_what_accumulation_changes_is_said_of_what_the_script_has(arguments, count):
    text = notes(KERAS + f"keras.optimizers.Lamb({arguments})")
    assert text.count("With gradient_accumulation_steps") == count


def test_what_the_arguments_do_not_change_is_not_said():
    assert (
        notes(ADDONS + "tfa.optimizers.LAMB(1e-3)")
        == "line 2: TensorFlow Addons LAMB is tf_lamb.LAMB"
    )
    assert "Weight decay" not in notes(KERAS + "keras.optimizers.Lamb(1e-3)")


@pytest.mark.parametrize(
    "left, why",
    [
        ("keras.optimizers.Lamb(*values)", "its positional arguments cannot be read"),
        ("keras.optimizers.Muon(rms_rate=0.3)", "tf_lamb has no counterpart of rms_rate"),
        ("keras.optimizers.Lamb(warm=3)", "Keras's Lamb has no warm"),
        ("keras.optimizers.Lamb(1e-3, decay=1e-5)", "Keras's Lamb has no decay"),
        ("keras.optimizers.Muon(exclude_embeddings=flag)", "exclude_embeddings is known only when"),
        ("keras.optimizers.Muon(exclude_layers=[3])", "exclude_layers is not a list of strings"),
        ("print(f'{keras.optimizers.Lamb()}')", "it stands in an f-string"),
        ("KINDS = {'big': keras.optimizers.Lamb}", "is named without a call"),
        ("class Mine(keras.optimizers.Lamb): pass", "is named without a call"),
        ("class Mine(keras.optimizers.Lamb): pass", "write tf_lamb.keras.LAMB, and its arguments"),
        ("keras.optimizers.Lamb.from_config(c)", "config of tf_lamb write tf_lamb.keras.LAMB"),
        ("model.compile('muon')", "'muon' is left as it is, because it is a text: if it selects "
         "the optimizer, write tf_lamb.keras.Muon(...)"),
        ("getattr(keras.optimizers, 'Lamb')(1e-3)", "'Lamb' is left as it is, because it is a te"),
    ],
)  # fmt: skip
def test_what_is_not_understood_stays_and_is_said_by_line(left, why):
    assert_left(KERAS + left, why)


@pytest.mark.parametrize(
    "config",
    [
        "OptimizerConfig(type='lamb', lamb=settings)",
        "OptimizerConfig(type='lamb', lamb=optimization.LAMBConfig(**settings))",
        "OptimizerConfig(type='lamb', **settings)",
        "OptimizerConfig(type='lamb', adamw=settings)",
        "OptimizationConfig({'optimizer': {'type': 'lamb', 'lamb': {**settings}}})",
        "OptimizationConfig({'optimizer': {'type': 'lamb', 'lamb': settings}})",
    ],
)
def test_a_config_that_cannot_be_read_stays(config):
    assert_left(CONFIG + f"optimization.{config}", "Set its type to tf_lamb by hand")


def assert_left(code, why):
    adopted = adopt(code)
    assert adopted.code == code
    assert [(note.line, note.is_left) for note in adopted.notes] == [(2, True)]
    assert why in adopted.notes[0].text


@pytest.mark.parametrize(
    "code, lines",
    [
        (
            "try:\n    from tensorflow_addons.optimizers import LAMB\nexcept ImportError:\n"
            "    from keras.optimizers import Lamb as LAMB\nLAMB(1e-3)\n",
            [2, 4, 5],
        ),
        ("from keras.optimizers import Lamb\nclass Lamb(Lamb): pass\nLamb(1)\n", [1, 2, 3]),
        ("import tensorflow_addons as tfa\ntfa.losses.X()\n", [1]),
        ("import keras\nopt = build('lamb')  \n", [2]),
        ("import keras\nopt = build(r'lamb')\n", [2]),
    ],
    ids=["two sources", "a class of the user's", "another part of Addons", "blanks", "raw text"],
)
def test_names_whose_meaning_is_open_stay_and_are_said(code, lines):
    adopted = adopt(code)
    assert adopted.code == code
    assert [note.line for note in adopted.notes] == lines


@pytest.mark.parametrize(
    "both, said",
    [
        ("weight_decay=0.1", "adam_weight_decay=0.004"),
        ("adam_weight_decay=0.0", "adam_weight_decay=0.0"),
        ("weight_decay=None, adam_weight_decay=wd", "adam_weight_decay=wd"),
    ],
)
def test_two_decays_of_keras_muon_are_said(both, said):
    text = notes(KERAS + f"keras.optimizers.Muon({both})", same_steps=True)
    assert f"Keras decays Adam's variables by {said}" in text
    same = notes(KERAS + "keras.optimizers.Muon(weight_decay=x, adam_weight_decay=x)")
    assert "Keras decays Adam's variables" not in same


@pytest.mark.parametrize(
    "other",
    [
        KERAS + "keras.optimizers.Adam(1e-3)",
        "import mine\nmine.LAMB(lr=0.1)",
        "import re\nre.compile('lamb')",
        "def Lamb():\n    pass\n\nLamb()",
        KERAS + "model.compile(optimizer='adam')",
        KERAS + "keras.layers.Dense(3)  # LAMB",
        "import torch_optimizer as keras\nkeras.optimizers.Lamb()",
    ],
)
def test_scripts_of_other_optimizers_stay(other):
    assert adopt(other) == Adopted(other, ())


@pytest.mark.parametrize(
    "before, after",
    [
        (
            "import tensorflow_addons as tfa  # LAMB\n\ntfa.optimizers.LAMB()\n",
            "import tf_lamb  # LAMB\n\ntf_lamb.LAMB()\n",
        ),
        (
            "import tensorflow_addons as tfa\ntfa.optimizers.LAMB()\ntfa.losses.X()\n",
            "import tensorflow_addons as tfa\nimport tf_lamb\ntf_lamb.LAMB()\ntfa.losses.X()\n",
        ),
        (
            "from keras.optimizers import Adam, Lamb\nAdam(), Lamb()\n",
            "from keras.optimizers import Adam\nimport tf_lamb\nAdam(), tf_lamb.keras.LAMB()\n",
        ),
        (
            "try:\n    import tensorflow_addons as tfa\nexcept ImportError:\n    raise\n"
            "tfa.optimizers.LAMB()\n",
            "import tf_lamb\ntry:\n    pass\nexcept ImportError:\n    raise\ntf_lamb.LAMB()\n",
        ),
        (
            "import os\ndef f():\n    import tensorflow_addons as tfa\n"
            "    return tfa.optimizers.LAMB()\n",
            "import tf_lamb\nimport os\ndef f():\n    return tf_lamb.LAMB()\n",
        ),
        (
            "import tf_lamb\nimport keras\nkeras.optimizers.Lamb()\n",
            "import tf_lamb\nimport keras\ntf_lamb.keras.LAMB()\n",
        ),
        (
            '"""Trains."""\nfrom __future__ import annotations\ntry:\n    import keras\n'
            "except ImportError:\n    raise\nkeras.optimizers.Lamb()\n",
            '"""Trains."""\nfrom __future__ import annotations\nimport tf_lamb\ntry:\n'
            "    import keras\nexcept ImportError:\n    raise\ntf_lamb.keras.LAMB()\n",
        ),
        (
            "import keras\nkeras.optimizers.Lamb()\nimport os\n",
            "import keras\nimport tf_lamb\ntf_lamb.keras.LAMB()\nimport os\n",
        ),
        (
            "import os; import tensorflow_addons as tfa\ntfa.optimizers.LAMB()\n",
            "import os; import tensorflow_addons as tfa\nimport tf_lamb\ntf_lamb.LAMB()\n",
        ),
        (
            "import tensorflow_addons as tfa\n"
            "tfa.optimizers.LAMB(tfa.optimizers.LAMB(lr=1).learning_rate)\n",
            "import tf_lamb\ntf_lamb.LAMB(tf_lamb.LAMB(learning_rate=1).learning_rate)\n",
        ),
        (
            "from official.modeling import optimization\n"
            "optimization.OptimizerConfig(type='lamb')\n",
            "from official.modeling import optimization\nimport tf_lamb\n"
            "tf_lamb.model_garden.register()\n"
            'optimization.OptimizerConfig({"type": "tf_lamb", "tf_lamb": {}})\n',
        ),
    ],
    ids=[
        "replaced",
        "kept",
        "taken out",
        "in try",
        "in a function",
        "there",
        "future",
        "behind",
        "semicolon",
        "nested",
        "garden",
    ],
)
def test_imports_follow(before, after):
    assert adopt(before).code == after


@pytest.mark.parametrize(
    "line, reason",
    [
        ("Lamb.from_config(config)", "because of line 3"),
        ("print(Lamb)\nKIND = Lamb", "because of lines 3, 4"),
        ("Adam()", "because no line here uses it: remove it"),
    ],
)
def test_an_import_that_stays_is_said_with_its_reason(line, reason):
    code = f"from keras.optimizers import Adam\nfrom keras.optimizers import Lamb\n{line}\n"
    assert f"line 2: the import of Lamb is left as it is, {reason}" in notes(code).splitlines()


def test_an_import_that_went_is_not_said_to_stay():
    line = "    from tensorflow_addons.optimizers import LAMB\n"
    code = f"def first():\n{line}    return LAMB(1e-3)\n\ndef second():\n{line}    return [LAMB]\n"
    assert [note.line for note in adopt(code).notes if note.is_left] == [6, 7]


def test_the_layout_of_a_call_stays():
    lines = ["    learning_rate=args.lr,  # tuned", "    weight_decay_rate=args.wd", "    if wd"]
    lines += ["    else 0,  # wd", "    beta_1=0.9  # last"]
    before = ["import tensorflow_addons as tfa", "tfa.optimizers.LAMB(", *lines, ")", ""]
    after = "\n".join(["import tf_lamb", "tf_lamb.LAMB(", *lines, ")", ""])
    assert adopt("\n".join(before)).code == after.replace("weight_decay_rate", "weight_decay")


def test_the_layout_of_a_config_stays():
    before = CONFIG + textwrap.dedent("""\
        optimization.OptimizationConfig({
            'optimizer': {
                'type': 'lamb',  # the type
                'lamb': {
                    'weight_decay_rate': 0.01,  # decay
                    'beta_1': 0.8,
                },
            },
        })
    """)
    words = {"'lamb'": "'tf_lamb'", "weight_decay_rate": "weight_decay"}
    after = before
    for word, ours in words.items():
        after = after.replace(word, ours)
    needs = "import tf_lamb\ntf_lamb.model_garden.register()\n"
    assert adopt(before).code == after.replace(CONFIG, CONFIG + needs)


@pytest.mark.parametrize(
    "before, after",
    [
        ("(1e-3, 0.9, **more)", "(1e-3, beta_1=0.9, **more)"),
        ("(1e-3,  # tuned\n)", "(1e-3, epsilon=1e-07,  # tuned\n)"),
        ("(\n    1e-3,\n)", "(\n    1e-3,\n    epsilon=1e-07,\n)"),
        ("(\n    1e-3,  # tuned\n)", "(\n    1e-3,  # tuned\n    epsilon=1e-07,\n)"),
        ("(\n    1e-3  # tuned\n)", "(\n    1e-3,  # tuned\n    epsilon=1e-07\n)"),
        ("(\n    1e-3,\n    # last\n)", "(\n    1e-3,\n    epsilon=1e-07,\n    # last\n)"),
        ("(\n    1e-3, 0.9\n)", "(\n    1e-3, beta_1=0.9,\n    epsilon=1e-07\n)"),
        ("(1e-3,\n     0.9)", "(1e-3,\n     beta_1=0.9,\n     epsilon=1e-07)"),
        ("()", "(learning_rate=0.001, epsilon=1e-07)"),
    ],
)
def test_arguments_that_are_added_fit_in(before, after):
    code = adopt(KERAS + "keras.optimizers.Lamb" + before, same_steps=True).code
    assert code == KERAS + "import tf_lamb\ntf_lamb.keras.LAMB" + after


def test_added_arguments_follow_the_indentation_of_a_block():
    before = (
        "def make():\n    return keras.optimizers.Lamb(\n        1e-3, weight_decay=wd\n    )\n"
    )
    code = adopt(KERAS + before, same_steps=True).code
    added = "        epsilon=1e-07, weight_decay_mode='decoupled'\n    )\n"
    assert code.endswith("(\n        1e-3, weight_decay=wd,\n" + added)


@pytest.mark.parametrize(
    "before, after",
    [
        (
            "(\n    lr=a,  # rate\n    weight_decay_rate=b  # decay\n)",
            "(\n    learning_rate=a,  # rate\n    weight_decay=b  # decay\n)",
        ),
        ("(lr=a, weight_decay_rate=a)", "(learning_rate=a, weight_decay=a)"),
        (
            "(\n    lr=a,\n    exclude_from_layer_adaptation=[]\n)",
            "(\n    learning_rate=a\n)",
        ),
    ],
)
def test_each_renamed_argument_keeps_its_line(before, after):
    assert (
        adopt(ADDONS + "tfa.optimizers.LAMB" + before).code
        == f"import tf_lamb\ntf_lamb.LAMB{after}"
    )


def test_settings_that_are_added_to_a_config_get_lines_of_their_own():
    settings = "{{\n    'type': '{0}', '{0}': {{\n        'learning_rate': 1,\n"
    before = settings.format("lars") + "        'eeta': 2  # trust\n    }})"
    after = settings.format("tf_lars") + "        'trust_coefficient': 2,  # trust\n"
    code = adopt(
        CONFIG + "optimization.OptimizerConfig(" + before.replace("'eeta'", "'weight_decay_rate'"),
        same_steps=True,
    ).code
    after = after.replace("trust_coefficient", "weight_decay")
    assert code.endswith(after + "        \"form\": {'denominator': 'norm_of_sum'}\n    }})")


def test_what_was_added_is_not_advised_again():
    script = KERAS + "lamb = keras.optimizers.Lamb()\nlamb.exclude_from_weight_decay(['bias'])\n"
    adopted = adopt(script, same_steps=True)
    assert "exclude_from_layer_adaptation=[]" in adopted.code
    text = "\n".join(map(str, adopted.notes))
    assert text.count("exclude_from_layer_adaptation") == 1 and "Pass " not in text


def test_the_trust_ratio_of_what_has_no_decay_is_said_once():
    script = KERAS + "lamb = keras.optimizers.Lamb()\nlamb.exclude_from_weight_decay(['bias'])\n"
    assert notes(script).count("exclude_from_layer_adaptation") == 1


@pytest.mark.parametrize("line", ["names += ['norm$']", "names.append('norm$')"])
def test_a_list_of_patterns_that_grows_is_not_known(line):
    made = "tfa.optimizers.LAMB(exclude_from_weight_decay=names)\n"
    text = notes(f"{ADDONS}names = ['bias']\n{line}\n{made}")
    assert "A pattern with $ or :0 may match different variables here." in text


def test_patterns_that_may_match_others_are_said():
    text = notes(ADDONS + "tfa.optimizers.LAMB(exclude_from_weight_decay=['bias$'])")
    assert "were searched in dense/bias:0. 'bias$' may match different variables here." in text


@pytest.mark.parametrize(
    "script, is_said",
    [
        ("tfa.optimizers.LAMB(exclude_from_weight_decay=['bias', 'norm'])", False),
        ("NAMES = ['bias']\ntfa.optimizers.LAMB(exclude_from_weight_decay=NAMES)", False),
        ("NAMES = ['gamma:0']\ntfa.optimizers.LAMB(exclude_from_weight_decay=NAMES)", True),
        ("tfa.optimizers.LAMB(exclude_from_layer_adaptation=flags.names)", True),
    ],
    ids=["none", "none by a name", "by a name", "not known"],
)
def test_patterns_that_match_the_same_are_not_said(script, is_said):
    assert ("may match different variables" in notes(ADDONS + script)) == is_said


@pytest.mark.parametrize("clipping", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_clipping_of_repeated_rows_is_said_where_something_clips(clipping):
    note = "are summed and then clipped here. TensorFlow Addons LAMB clips them first."
    assert note in notes(ADDONS + f"tfa.optimizers.LAMB(1e-3, {clipping}=1.0)")
    assert "clipped" not in notes(ADDONS + f"tfa.optimizers.LAMB(1e-3, {clipping}=None)")
    assert "clipped" not in notes(KERAS + f"keras.optimizers.Lamb(1e-3, {clipping}=1.0)")
    assert "clipped" not in notes(GARDEN + f"tfm.optimization.lars.LARS(0.5, {clipping}=1.0)")


def test_repeated_rows_are_clipped_as_it_is_said():
    """Two gradients of one row, each of 3: theirs come to a sum of sqrt(2), and ours to 1."""
    import tensorflow as tf
    from official.modeling.optimization import lamb

    table = tf.Variable(tf.ones((4, 1)))
    gradient = tf.IndexedSlices(tf.fill((2, 1), 3.0), tf.constant([1, 1]), tf.constant([4, 1]))
    theirs = lamb.LAMB(0.1, clipnorm=1.0)
    ours = tf_lamb.tf_keras.LAMB(0.1, clipnorm=1.0, jit_compile=False)
    ours.build([table])
    for optimizer in (theirs, ours):
        optimizer.apply_gradients([(gradient, table)])
    moments = theirs.get_slot(table, "m")[1, 0], ours.state_of(0)["m"][1, 0]
    np.testing.assert_allclose(moments, (0.1 * 2**0.5, 0.1), rtol=1e-6)


def blocks():
    """The scripts of the pages that come before a change, with those after it."""
    docs = pathlib.Path(__file__).parents[2] / "docs"
    pages = (docs / "start" / "addons.md", docs / "moving_in.md")
    text = "".join(page.read_text() for page in pages)
    found = re.findall(r"```python\n(# (?:before|after).*?)```", text, re.DOTALL)
    return [
        (a, b)
        for a, b in zip(found, found[1:], strict=False)
        if a.startswith("# before") and b.startswith("# after")
    ]


@pytest.mark.parametrize("before, after", blocks()[:2], ids=["addons", "keras"])
def test_the_pages_scripts_become_what_the_page_says(before, after):
    assert adopt(before.partition("\n")[2]).code == after.partition("\n")[2]


# What the files and the loops of a script need beside its optimizer.

TF = "import tensorflow as tf\n"
LAMB = TF + KERAS + "lamb = keras.optimizers.Lamb()\n"
ADDONS_LAMB = TF + ADDONS + "lamb = tfa.optimizers.LAMB()\n"
IN_TF_KERAS_ONLY = TF + "import tf_keras\n" + GARDEN + "lamb = tfm.optimization.lamb.LAMB()\n"
LEGACY = "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n" + ADDONS_LAMB
REPLICAS = "strategy = tf.distribute.MirroredStrategy()\n"
UPDATE = "lamb.apply_gradients(pairs)\n"
STEP_OF_FIT = "class Mine(keras.Model):\n    def train_step(self, data):\n        "


@pytest.mark.parametrize(
    "code, build, line",
    [
        (LAMB + REPLICAS + UPDATE, "lamb.build(model.trainable_variables)", 5),
        (LAMB + REPLICAS + "lamb.apply(g, net.trainable_weights)\n",
         "lamb.build(net.trainable_weights)", 5),
        (LAMB + REPLICAS + "model.build(shape)\n" + UPDATE,
         "lamb.build(model.trainable_variables)", 6),
        (LAMB + REPLICAS + "optimizer = lamb\noptimizer.apply_gradients(pairs)\n",
         "lamb.build(model.trainable_variables)", 6),
    ],
    ids=["apply_gradients", "apply", "the model is built", "another name"],
)  # fmt: skip
def test_a_loop_on_replicas_is_told_where_to_build(code, build, line):
    note = f"line 3: Add `{build}` below the line that makes the optimizer, in the strategy's scope"
    text = notes(code)
    assert note in text and text.count(".build(") == 1
    assert f"fails at the first step on several replicas, in line {line}." in text


MODEL = "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n"
FUNCTION = (
    "def make():\n    x = keras.Input((4,))\n    return keras.Model(x, keras.layers.Dense(1)(x))\n"
)
MAKES = "lamb = keras.optimizers.Lamb()\n"
STEP = "def step():\n    lamb.apply_gradients(zip(gradients, model.trainable_variables))\n"
BUILD = "lamb.build(model.trainable_variables)\n"
IN_SCOPE = "with strategy.scope():\n"


def indented(*lines):
    return "".join(f"    {line}" for line in lines)


@pytest.mark.parametrize(
    "before, after, rest",
    [
        (MODEL + MAKES, BUILD, STEP),
        (MAKES + MODEL, BUILD, STEP),
        (IN_SCOPE + indented(MODEL, MAKES), indented(BUILD), STEP),
        (FUNCTION + IN_SCOPE + indented("model = make()\n", "x = 1\n", MAKES), indented(BUILD),
         indented("y = 2\n") + STEP),
        ("def main():\n" + indented(MODEL, MAKES), indented(BUILD),
         indented("lamb.apply_gradients(zip(gradients, model.trainable_variables))\n")),
        (MODEL + MAKES, BUILD,
         "weights = model.trainable_variables\nlamb.apply_gradients(zip(gradients, weights))\n"),
    ],
    ids=["a module", "the model last", "a scope", "a function makes the model", "a function",
         "by another name"],
)  # fmt: skip
def test_the_build_of_a_loop_on_replicas_is_written_where_it_is_certain(before, after, rest):
    adopted = adopt(TF + KERAS + REPLICAS + before + rest)
    ours = (TF + KERAS + "import tf_lamb\n" + REPLICAS + before + after + rest).replace(
        "keras.optimizers.Lamb", "tf_lamb.keras.LAMB"
    )
    assert adopted.code == ours
    line = (TF + KERAS + REPLICAS + before).count("\n")
    note = f"Added `{BUILD.strip()}` below line {line}. Without it Keras 3 fails at the first step"
    assert note in "\n".join(map(str, adopted.notes))


@pytest.mark.parametrize(
    "code",
    [
        "model = Mine()\n" + MAKES + STEP,
        "model = keras.Sequential([keras.layers.Dense(1)])\n" + MAKES + STEP,
        "model = keras.Sequential([keras.Input((4,))])\nmodel.add(layer)\n" + MAKES + STEP,
        MODEL + "if big:\n" + indented(MAKES) + STEP,
        MODEL + MAKES + "model = other\n" + STEP,
        MODEL + "self.lamb = keras.optimizers.Lamb()\n" + STEP.replace("lamb", "self.lamb"),
        MODEL + MAKES + STEP.replace("step()", "step(lamb, model)"),
        IN_SCOPE + indented(MODEL) + MAKES + STEP,
        MODEL + "def make():\n" + indented(MAKES, "return lamb\n") + "lamb = make()\n" + STEP,
        MODEL + MAKES + UPDATE,
        MODEL.replace("[", "[keras.Sequential([").replace("4,))", "4,))])") + MAKES + STEP,
        MODEL.replace("keras.Input(", "keras.applications.VGG16(input_shape=") + MAKES + STEP,
        "def make():\n    return make()\nmodel = make()\n" + MAKES + STEP,
        MODEL + MAKES + STEP + UPDATE,
        MODEL + MAKES + "model.trainable = False\n" + STEP,
        MODEL + MAKES + "lamb.exclude_from_weight_decay(var_names=['bias'])\n" + STEP,
    ],
    ids=["weights later", "no input", "added to", "in if", "two models", "an attribute",
         "arguments", "out of scope", "another scope", "other variables", "an input within",
         "a shape within", "recursive", "other variables, too", "frozen later", "excluded later"],
)  # fmt: skip
def test_a_build_that_is_not_certain_is_noted(code):
    adopted = adopt(TF + KERAS + REPLICAS + code)
    assert ".build(" not in adopted.code
    assert ".build(model.trainable_variables)` below the" in "\n".join(map(str, adopted.notes))


def test_variables_beside_the_models_are_built_too():
    step = STEP.replace("model.trainable_variables", "model.trainable_variables + [scale]")
    adopted = adopt(TF + KERAS + REPLICAS + MODEL + MAKES + step)
    note = "Add `lamb.build(model.trainable_variables + [scale])` below"
    assert ".build(" not in adopted.code and note in "\n".join(map(str, adopted.notes))


def test_what_has_to_come_before_the_build_is_named():
    exclude = "lamb.exclude_from_weight_decay(var_names=['bias'])\n"
    note = "has its weights, and below the last line with `.exclude_from_weight_decay(`. Without"
    assert note in notes(TF + KERAS + REPLICAS + MODEL + MAKES + exclude + STEP)


def test_each_of_two_optimizers_is_built_with_its_own_variables():
    code = TF + KERAS + REPLICAS + MAKES + MAKES.replace("lamb", "other")
    code += STEP.replace("lamb", "other").replace("model", "critic") + STEP
    text = notes(code)
    assert "line 4: Add `lamb.build(model.trainable_variables)`" in text
    assert "line 5: Add `other.build(critic.trainable_variables)`" in text


def test_a_script_with_the_build_makes_a_step_on_replicas():
    """Without it the placeholder of the first step is not fed."""
    step = """\
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x))
    gradients = tape.gradient(loss, model.trainable_variables)
    lamb.apply_gradients(zip(gradients, model.trainable_variables))

tf.function(lambda x: strategy.run(step, (x,)))(tf.ones((2, 4)))
"""
    ops = "cross_device_ops=tf.distribute.ReductionToOneDevice()"
    replicas = f"strategy = tf.distribute.MirroredStrategy(['cpu:0', 'cpu:1'], {ops})\n"
    code = TF + KERAS + replicas + IN_SCOPE + indented(MODEL, MAKES) + step
    names: dict = {}
    exec(adopt(code).code, names)
    assert int(names["lamb"].iterations.numpy()) == 1


@pytest.mark.parametrize(
    "code",
    [
        LAMB + UPDATE,
        LAMB + REPLICAS,
        LAMB + REPLICAS + "lamb.build(weights)\n" + UPDATE,
        LAMB + REPLICAS + STEP_OF_FIT + UPDATE,
        LAMB.replace("Lamb", "Adam") + REPLICAS + UPDATE,
        LAMB + REPLICAS + "adam.apply_gradients(pairs)\n",
        IN_TF_KERAS_ONLY + REPLICAS + UPDATE,
        LEGACY + REPLICAS + UPDATE,
    ],
    ids=["one device", "fit", "built", "a step of fit", "no rewritten optimizer",
         "another optimizer", "tf_keras", "legacy"],
)  # fmt: skip
def test_a_loop_that_need_not_build_is_not_told_to(code):
    assert ".build(" not in notes(code)


@pytest.mark.parametrize(
    "line, said",
    [
        ("print(lamb.lr)", "Keras 3 has no lamb.lr: write lamb.learning_rate"),
        ("lamb.lr = 0.1", "setting lamb.lr changes nothing in Keras 3: write lamb.learning_rate"),
        ("lamb.lr *= 0.1", "Keras 3 has no lamb.lr: write lamb.learning_rate"),
        ("tf.keras.backend.set_value(lamb.lr, 2)",
         "Keras 3 does not set lamb.lr this way: write lamb.learning_rate = 2"),
        ("tf.keras.backend.set_value(lamb.learning_rate, 2)",
         "Keras 3 does not set lamb.learning_rate this way: write lamb.learning_rate = 2"),
        ("getattr(lamb, 'lr')", 'Keras 3 has no lamb.lr: write "learning_rate" here'),
        ("lamb.weights", "Keras 3 has no lamb.weights, nor has tf_keras outside of its legacy "
         "optimizers: write lamb.variables"),
        ("lamb.variables()", "Keras 3 has no lamb.variables(): write lamb.variables"),
        ("lamb.get_weights()", "legacy optimizers: write [v.numpy() for v in lamb.variables]"),
        ("lamb._decayed_lr(tf.float32)", "Keras 3 has no lamb._decayed_lr(), nor has tf_keras "
         "outside of its legacy optimizers: write lamb.learning_rate"),
        ("lamb.get_slot(model.trainable_variables[2], 'm')", "write lamb.state_of(2)['m']"),
        ("lamb.get_slot(v, 'momentum')",
         "write lamb.state_of(i)['v'], where v is variable i of lamb.build"),
        ("lamb.get_slot_names()", "legacy optimizers: write list(lamb.state_"),
        ("lamb._create_slots(weights)", "write lamb.build(weights)"),
        ("lamb._get_hyper('beta_1')", "Keras 3 has no lamb._get_hyper(): write getattr(lamb, 'bet"),
        ("lamb._get_hyper('weight_decay_rate')", "write getattr(lamb, 'weight_decay')"),
        ("lamb._set_hyper('lr', 0.8)", "write lamb.learning_rate = 0.8"),
        ("lamb._set_hyper('beta_1', 0.8)", "write another optimizer, as its 'beta_1' cannot be s"),
        ("lamb.get_slot(slot_name='m', var=w)", "write lamb.state_of(i)['m'], where w is variabl"),
        ("lamb.compute_gradients(loss, v)", "Keras 3 has no lamb.compute_gradients(): write grad"),
        ("lamb.apply_gradients(pairs, experimental_aggregate_gradients=False)",
         "leave it out, and your sum over the replicas, too, which the optimizer makes"),
        ("lamb.minimize(loss, weights)", "write lamb.apply_gradients, with gradients of a"),
        ("lamb.apply_gradients(pairs, name='up')", "has no argument name in Keras 3: leave it out"),
    ],
)  # fmt: skip
def test_what_keras_3_lacks_is_said_by_line(line, said):
    (note,) = [note for note in adopt(LAMB + line + "\n").notes if note.line == 4]
    assert said in note.text and note.is_left


@pytest.mark.parametrize(
    "lines",
    [
        "print(model.optimizer.lr)",
        "same = lamb\nprint(same.lr)",
        "def make():\n    return lamb\nmade = make()\nprint(made.lr)",
        "def rate(optimizer):\n    return optimizer.lr",
        "self.ours = lamb if big else lamb\nprint(self.ours.lr)",
        "scaled = keras.optimizers.LossScaleOptimizer(lamb)\nprint(scaled.lr)",
    ],
    ids=["a model's", "another name", "a function's", "a parameter", "either", "wrapped"],
)
def test_a_rewritten_optimizer_is_known_by_other_names(lines):
    assert ".lr: write " in notes(LAMB + lines + "\n")


@pytest.mark.parametrize(
    "code",
    [
        LAMB + "adam = keras.optimizers.Adam()\nprint(adam.lr)\n",
        LAMB + "optimizer = keras.optimizers.Adam()\nprint(optimizer.lr)\n",
        LAMB + "print(args.lr, lamb.learning_rate, lamb.variables)\nlamb.learning_rate = 0.1\n",
        TF + KERAS + "keras.optimizers.Adam().lr\n",
        IN_TF_KERAS_ONLY + "lamb.lr\n",
        LEGACY + "lamb.lr\n",
    ],
    ids=["another", "another of a usual name", "there", "no rewritten one", "tf_keras", "legacy"],
)
def test_what_keras_3_has_is_not_said(code):
    assert "Keras 3" not in notes(code)


@pytest.mark.parametrize(
    "line, number",
    [
        ("int(lamb.iterations)", "int(lamb.iterations.numpy())"),
        ("float(lamb.iterations)", "float(lamb.iterations.numpy())"),
        ("range(lamb.iterations)", "int(lamb.iterations.numpy())"),
        ("range(lamb.iterations, 9)", "int(lamb.iterations.numpy())"),
        ("f'{lamb.iterations:d}'", "int(lamb.iterations.numpy())"),
        ("'{}'.format(lamb.iterations)", "int(lamb.iterations.numpy())"),
        ("'%d' % lamb.iterations", "int(lamb.iterations.numpy())"),
        ("'%d of %d' % (lamb.iterations, n)", "int(lamb.iterations.numpy())"),
        ("float(lamb.learning_rate)", "float(lamb.learning_rate.numpy())"),
        ("float(lamb.lr)", "float(lamb.learning_rate.numpy())"),
        ("'%g' % lamb._decayed_lr(tf.float32)", "float(lamb.learning_rate.numpy())"),
    ],
)
def test_numbers_under_a_strategy_are_said_by_line(line, number):
    assert [note.text.partition(": write ")[2] for note in at_line_5(line)] == [number]


@pytest.mark.parametrize(
    "line",
    [
        "int(lamb.iterations.numpy())",
        "lamb.iterations % 5 == 0",
        "lamb.iterations < 5",
        "int(other.iterations)",
        "lamb.iterations.assign(0)",
    ],
)
def test_what_works_under_a_strategy_is_not_said(line):
    assert not at_line_5(line)


def at_line_5(line):
    """The notes on a line of a script that uses a strategy."""
    return [note for note in adopt(LAMB + REPLICAS + line + "\n").notes if note.line == 5]


def test_numbers_without_a_strategy_are_not_said():
    assert "Keras 3" not in notes(LAMB + "int(lamb.iterations)\nf'{lamb.iterations}'\n")


def test_a_line_that_reads_an_attribute_twice_has_one_note():
    assert notes(LAMB + "print(lamb.lr, lamb.lr)\n").count("lamb.lr") == 1


@pytest.mark.parametrize("script", [IN_TF_KERAS_ONLY, LEGACY], ids=["tf_keras", "legacy"])
def test_what_tf_keras_lacks_is_said_there(script):
    note = "tf_keras has no lamb.get_slot() outside of its legacy optimizers: write"
    assert note in notes(script + "lamb.get_slot(v, 'm')\n")
    had = "lamb.minimize(loss, v)\nlamb.apply_gradients(pairs, name='up')\nlamb.variables()\n"
    assert "tf_keras has" not in notes(script + had)


def test_what_is_said_of_either_keras_is_so():
    rooms = (tf_lamb.keras, tf_lamb.keras, tf_lamb.tf_keras)
    changed, optimizer, unchanged = (room.LAMB(0.25) for room in rooms)
    changed.lr = 0.5
    assert float(changed.learning_rate.numpy()) == 0.25
    for name, way in (attributes._PROPERTIES | attributes._METHODS).items():
        is_list = name == "variables"  # a list on Keras 3, which cannot be called
        assert is_list or not hasattr(optimizer, name)
        assert hasattr(unchanged, name) == way.is_in_tf_keras
        assert hasattr(tf_keras.optimizers.legacy.Adam, name) or way.is_in_tf_keras
    weights = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).trainable_variables
    optimizer.build(weights)
    assert list(optimizer.state_of(0)) == ["m", "v"]


ACCURACY = "accuracy = keras.metrics.Accuracy()\n"


def test_the_reset_of_a_metric_is_renamed():
    adopted = adopt(LAMB + ACCURACY + "accuracy.reset_states()\n")
    assert adopted.code.endswith("accuracy.reset_state()\n")
    note = "line 5: Keras 3 has no accuracy.reset_states(), and reset_state() is written here"
    assert note in map(str, adopted.notes)
    metric = keras.metrics.Accuracy()
    metric.reset_state()
    assert not hasattr(metric, "reset_states")


@pytest.mark.parametrize(
    "line, note",
    [
        (
            "for metric in metrics:\n    metric.reset_states()",
            "write metric.reset_state(), if it is Keras",
        ),
        ("self.accuracy.reset_states()", "write self.accuracy.reset_state(), if it is Keras's"),
        ("model.reset_states()", "write reset_state() of its stateful layers"),
        ("accuracy.update_state(x, y)", ""),
        ("class Mine:\n    def reset_states(self):\n        pass\nMine().reset_states()", ""),
    ],
    ids=["in a loop", "an attribute", "a model", "another method", "the script's own"],
)
def test_another_reset_stays_and_gets_a_note(line, note):
    code = LAMB + ACCURACY + line + "\n"
    assert adopt(code).code.endswith(line + "\n")
    assert note in notes(code) and ("reset_state" in notes(code)) == bool(note)
    assert "reset_state" not in notes(LEGACY + "accuracy.reset_states()\n")


CHECKPOINT = "saved = tf.train.Checkpoint(model=model, optimizer=lamb)\n"


@pytest.mark.parametrize(
    "code, said",
    [
        (LAMB, "Keras's Lamb is restored without its optimizer's state, and without an error. To "
         "continue its run, make Keras's Lamb, call its build(model.trainable_variables), restore "
         "the checkpoint into it, and pass it to tf_lamb.keras.migrate."),
        (ADDONS_LAMB, "TensorFlow Addons LAMB is restored without its moments and its step, and "
         "without an error. Of a model of tf_keras, or of TensorFlow before 2.16, weights are "
         "missing, too. tf_lamb.migrate(path, optimizer, model, weights=True) reads all of them."),
        (LEGACY, "TensorFlow Addons LAMB cannot be restored here: restore raises a ValueError. "
         "tf_lamb.tf_keras.migrate(path, optimizer, model, weights=True) reads it."),
    ],
)  # fmt: skip
def test_a_script_that_restores_is_told_what_goes_on(code, said):
    text = notes(code + CHECKPOINT + "saved.restore(path)\n")
    assert f"line {code.count(chr(10)) + 1}: A checkpoint of {said}" in text


@pytest.mark.parametrize(
    "code",
    [LAMB + CHECKPOINT, LAMB + "tf.train.Checkpoint(model=model).restore(path)\n"],
    ids=["saves", "weights alone"],
)
def test_a_script_that_restores_no_optimizer_is_not_told(code):
    assert "A checkpoint of" not in notes(code)


@pytest.mark.skipif(not hasattr(keras.optimizers, "Lamb"), reason="this Keras has no Lamb")
@pytest.mark.parametrize("is_built", [True, False])
def test_what_is_said_of_keras_checkpoints_is_so(tmp_path, is_built):
    import tensorflow as tf

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    old, ours = keras.optimizers.Lamb(), tf_lamb.keras.LAMB()
    old.apply(
        [keras.ops.ones(v.shape) for v in model.trainable_variables], model.trainable_variables
    )
    path = tf.train.Checkpoint(model=model, optimizer=old).write(str(tmp_path / "ckpt"))
    if is_built:
        ours.build(model.trainable_variables)
    tf.train.Checkpoint(model=model, optimizer=ours).restore(path)
    ours.build(model.trainable_variables)
    assert int(old.iterations) == 1 and int(ours.iterations) == 0


def test_what_is_said_of_checkpoints_of_addons_is_so():
    """Keras 3 restores neither moments nor step nor weights, in silence; tf_keras raises."""
    import tensorflow as tf
    import tf_keras

    golden = migrating.ADDONS
    path = golden["files"]["checkpoint"]
    model, optimizer = migrating.build(keras), tf_lamb.keras.LAMB()
    before = model.get_weights()
    optimizer.build(model.trainable_variables)
    tf.train.Checkpoint(model=model, optimizer=optimizer).restore(path)
    assert int(optimizer.iterations) == 0 and not optimizer.state_of(0)["m"].numpy().any()
    assert any(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    report = tf_lamb.keras.migrate(path, optimizer, model, weights=True)
    assert report.step == int(optimizer.iterations) > 0 and report.weights == len(before)
    tf_model = migrating.build(tf_keras)
    saved = tf.train.Checkpoint(model=tf_model, optimizer=tf_lamb.tf_keras.LAMB())
    with pytest.raises(ValueError, match="restore a checkpoint from a legacy TF-Keras optimizer"):
        saved.restore(path)


LOAD = "model = keras.models.load_model(path)\n"


@pytest.mark.parametrize(
    "code, room",
    [
        (KERAS + LOAD, "tf_lamb.keras"),
        ("import tf_lamb\n" + KERAS + LOAD, "tf_lamb.keras"),
        ("from keras.saving import load_model\nload_model(path)", "tf_lamb.keras"),
        (TF + "tf.keras.models.load_model(path, compile=True)", "tf_lamb.keras"),
        (TF + "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n"
         "tf.keras.models.load_model(path)", "tf_lamb.tf_keras"),
        ("import tf_keras\ntf_keras.models.load_model(path)", "tf_lamb.tf_keras"),
    ],
)  # fmt: skip
def test_a_script_that_loads_a_model_is_told_the_import(code, room):
    assert f"Add `import {room}` to load a file here" in notes(code)


@pytest.mark.parametrize(
    "code",
    [
        KERAS + "keras.models.load_model(path, compile=False)",
        KERAS + "import tf_lamb\n" + LOAD,
        "import tf_lamb.keras\n" + KERAS + LOAD,
        "from tf_lamb import keras as ours\n" + KERAS + LOAD,
        KERAS + LOAD + "model.compile(keras.optimizers.Lamb())\n",
        "import mine\nmine.load_model(path)",
    ],
    ids=["compile=False", "after Keras", "ours", "from ours", "rewritten", "another's"],
)
def test_a_script_that_loads_it_anyhow_is_not_told(code):
    assert "to load a file here" not in notes(code)


@pytest.mark.parametrize(
    "code, host",
    [
        (LAMB + "model.save(path)\n", "Keras"),
        (LAMB + "self.best.save('best.keras')\n", "Keras"),
        (LAMB + "keras.models.save_model(model, path)\n", "Keras"),
        (LAMB + "keras.callbacks.ModelCheckpoint(path, save_best_only=True)\n", "Keras"),
        (ADDONS_LAMB + "tf.keras.callbacks.ModelCheckpoint(filepath=path)\n", "Keras"),
        (IN_TF_KERAS_ONLY + "model.save(path)\n", "tf_keras"),
    ],
    ids=["a model", "a .keras file", "a function", "a callback", "of TensorFlow", "tf_keras"],
)
def test_a_script_that_saves_a_model_is_told_what_loading_needs(code, host):
    line = code.count("\n")
    said = "A script that loads this file with its optimizer needs `import tf_lamb` after"
    assert f"line {line}: {said} {host}." in notes(code)


@pytest.mark.parametrize(
    "code",
    [
        LAMB + "model.save(path, include_optimizer=False)\n",
        LAMB + "keras.callbacks.ModelCheckpoint(path, save_weights_only=True)\n",
        LAMB + "keras.callbacks.ModelCheckpoint('best.weights.h5', save_weights_only=flag)\n",
        LAMB + "manager.save(checkpoint_number=step)\n",
        LAMB + "import numpy as np\nnp.save('model.npy', x)\n",
        LAMB + "model.save_weights(path)\n",
        LAMB.replace("Lamb", "Adam") + "model.save(path)\n",
    ],
    ids=["without", "weights", "a file of weights", "a manager", "an array", "save_weights",
         "another optimizer"],
)  # fmt: skip
def test_a_script_that_saves_no_optimizer_of_ours_is_not_told(code):
    assert "A script that loads this file" not in notes(code)


def steps(script):
    """The weights after three steps of the optimizer that a script makes for a small model."""
    names: dict = {}
    exec(script, names)
    host = names["host"]
    host.utils.set_random_seed(0)
    layers = [host.layers.Dense(6, "tanh", name="hidden"), host.layers.Dense(3, name="head")]
    model = host.Sequential([host.Input((4,)), *layers])
    rng = np.random.default_rng(0)
    model.compile(names["optimizer"], "mse")
    model.fit(rng.normal(size=(24, 4)), rng.normal(size=(24, 3)), batch_size=8, verbose=0)
    return model.get_weights()


IN_KERAS = "import keras\nhost = keras\n"
IN_TF_KERAS = (
    "import tf_keras\nfrom official.modeling.optimization import lamb, lars\nhost = tf_keras\n"
)
SAME = [
    IN_KERAS + "optimizer = keras.optimizers.Lamb(0.02)",
    IN_KERAS + "optimizer = keras.optimizers.Lamb(0.02, weight_decay=0.1, clipvalue=0.01)",
    IN_KERAS
    + "optimizer = keras.optimizers.Lamb(0.02, weight_decay=0.1)\n"
    + "optimizer.exclude_from_weight_decay(var_names=['bias'])",
    IN_KERAS + "optimizer = keras.optimizers.Muon(0.02, epsilon=1e-12)",
    IN_KERAS
    + "optimizer = keras.optimizers.Muon(\n    0.02, epsilon=1e-12, adam_beta_1=0.8,\n"
    + "    exclude_layers=['head'], ns_steps=4)",
    IN_TF_KERAS + "optimizer = lamb.LAMB(0.02, weight_decay_rate=0.1)",
    IN_TF_KERAS + "optimizer = lamb.LAMB(0.02, 0.8, exclude_from_weight_decay=['bias'])",
    IN_TF_KERAS + "optimizer = lars.LARS(0.5, weight_decay_rate=0.1, eeta=0.1)",
    IN_TF_KERAS + "optimizer = lars.LARS(0.5, 0.8, 0.1, 0.1, classic_momentum=False)",
]


@pytest.mark.filterwarnings("ignore:No variable matches the pattern 'embedding'")
@pytest.mark.parametrize(
    "before", SAME, ids=[script.splitlines()[3 if "official" in script else 2] for script in SAME]
)
def test_three_steps_are_those_of_before(before):
    after = adopt(before, same_steps=True).code
    assert "tf_lamb." in after
    for a, b in zip(steps(after), steps(before), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_without_the_added_arguments_the_steps_are_the_papers():
    """So the notes are right that something changes."""
    before = IN_KERAS + "optimizer = keras.optimizers.Lamb(0.02, weight_decay=0.5)"
    papers = IN_KERAS + "import tf_lamb\noptimizer = tf_lamb.keras.LAMB(0.02, weight_decay=0.5)"
    ends = [steps(script) for script in (adopt(before).code, papers, before)]
    for a, b in zip(*ends[:2], strict=True):
        np.testing.assert_array_equal(a, b)
    assert max(np.abs(a - c).max() for a, _, c in zip(*ends, strict=True)) > 1e-4


def test_a_config_of_the_model_garden_makes_ours():
    before = textwrap.dedent("""
        from official.modeling import optimization
        from official.modeling.optimization.configs import optimizer_config

        config = optimization.OptimizationConfig()
        config.optimizer = optimization.OptimizerConfig(
            type="lamb", lamb=optimizer_config.LAMBConfig(weight_decay_rate=0.01, epsilon=1e-5)
        )
        config.learning_rate = optimization.LrConfig(
            {"type": "constant", "constant": {"learning_rate": 0.5}}
        )
        factory = optimization.OptimizerFactory(config)
        optimizer = factory.build_optimizer(factory.build_learning_rate())
    """)
    adopted = adopt(before)
    assert "LAMBConfig" not in adopted.code and "optimizer_config" not in adopted.code
    names: dict = {}
    exec(adopted.code, names)
    config = names["optimizer"].get_config()
    assert type(names["optimizer"]) is tf_lamb.tf_keras.LAMB
    assert (config["weight_decay"], config["epsilon"], config["learning_rate"]) == (0.01, 1e-5, 0.5)


@pytest.mark.parametrize("kind, family", [("lamb", "LAMB"), ("lars", "LARS")])
def test_lines_that_set_what_the_old_type_had_are_noted(kind, family):
    """The Model Garden takes them without an error, and our optimizer would not hear of it."""
    before = CONFIG + textwrap.dedent(f"""\
        config = optimization.OptimizationConfig({{"optimizer": {{"type": "{kind}"}}}})
        config.optimizer.{kind}.beta_1 = 0.8
        config.optimizer.{kind}.epsilon = config.optimizer.{kind}.epsilon / 10
        config.optimizer.{kind} = settings
        config.optimizer.adamw.beta_1 = 0.8
        self.{kind}.beta_1 = 0.8
        print(config.optimizer.{kind}.name)
    """)
    adopted = adopt(before)
    first = before.splitlines().index(f"config.optimizer.{kind}.beta_1 = 0.8") + 1
    notes = [note for note in adopted.notes if f"config.optimizer.{kind} " in note.text]
    assert [note.line for note in notes] == [first, first + 1, first + 2, first + 5]
    assert all(note.is_left and f"write config.optimizer.tf_{kind}," in note.text for note in notes)
    assert all(note.text.endswith(f"the arguments of tf_lamb.{family}") for note in notes)
    assert len(adopted.notes) == len(notes) + 1
    assert f"config.optimizer.{kind}.beta_1 = 0.8" in adopted.code


def test_settings_of_a_config_that_is_left_are_not_noted():
    before = CONFIG + textwrap.dedent("""\
        config = optimization.OptimizationConfig({"optimizer": {"type": "lamb", "lamb": given}})
        config.optimizer.lamb.beta_1 = 0.8
    """)
    (note,) = adopt(before).notes
    assert "Set its type to tf_lamb by hand" in note.text


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_bytes(b"import keras\r\noptimizer = keras.optimizers.Lamb(1e-3)\r\n")
    return path


def test_the_command_shows_a_diff_and_writes_nothing(script, capsys):
    before = script.read_bytes()
    assert main([str(script)]) == 0
    out = capsys.readouterr().out
    assert "-optimizer = keras.optimizers.Lamb(1e-3)" in out
    assert "+optimizer = tf_lamb.keras.LAMB(1e-3)" in out
    assert "line 2: Keras's Lamb is tf_lamb.keras.LAMB" in out
    keep = "--same_steps adds the arguments that keep the steps."
    assert out.endswith(f"Nothing was written; --write does it. {keep}\n")
    assert script.read_bytes() == before
    assert main([str(script), "--same_steps"]) == 0
    assert capsys.readouterr().out.endswith("Nothing was written; --write does it.\n")


def test_of_a_script_with_nothing_to_change_it_promises_no_writing(tmp_path, capsys):
    (path := tmp_path / "train.py").write_text("import keras\n")
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert out.endswith("no optimizer that this package replaces.\nNothing is to be written.\n")


def test_the_command_writes_on_demand_and_keeps_ends_of_lines(script, capsys):
    assert main([str(script), "--write"]) == 0
    assert script.read_bytes() == (
        b"import keras\r\nimport tf_lamb\r\noptimizer = tf_lamb.keras.LAMB(1e-3)\r\n"
    )
    assert capsys.readouterr().out.endswith("Written: 1 of 1.\n")
    assert main([str(script)]) == 0
    assert "no optimizer that this package replaces" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("train.py", "def f(:\n", "line 1 is no Python"),
        ("train.yaml", "type: lamb", "write type: tf_lamb"),
        ("train.ipynb", "{}", "save the notebook as a script first"),
        ("none.py", None, "No such file"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_line(name, text, said, tmp_path, capsys):
    if text is not None:
        (tmp_path / name).write_text(text)
    assert main([str(tmp_path / name)]) == 1
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_without_libcst_the_command_names_the_extra(script):
    code = "import runpy, sys; sys.modules['libcst'] = None\n"
    code += "runpy.run_module('tf_lamb.adopt', run_name='__main__', alter_sys=True)"
    done = subprocess.run([sys.executable, "-c", code, str(script)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "This needs libcst: pip install libcst.\n"


def test_the_command_loads_no_framework(script):
    code = "import sys; from tf_lamb.adopt.__main__ import main; main(sys.argv[1:])\n"
    code += "print({'keras', 'tensorflow', 'jax', 'torch'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code, str(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("set()\n")
