"""The site: `make docs` writes it to .build/site, from these pages and from the docstrings.

Sphinx, because its autodoc reads what Keras's classes are once they are imported, signatures and
all; MyST, so that the pages stay the Markdown that a code host shows; Furo, because it serves its
own fonts and scripts and asks no other machine for any.
"""

import inspect
import os
import re

os.environ["KERAS_BACKEND"] = "jax"  # it is imported sooner than TensorFlow
import keras

import tf_lamb

project = "tf_lamb"
author = "The tf_lamb authors"
copyright = author
version = release = tf_lamb.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = f"tf_lamb {version}"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
pygments_style = "friendly"
highlight_language = "none"  # a block that names no language is a command or what one printed

myst_heading_anchors = 3
smartquotes_action = "D"  # dashes alone: "norm_and_bias" is there to be copied

default_role = "py:obj"  # a name in backticks is a link where the reference has it
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": True}
autodoc_typehints = "none"
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# What a user finds in Keras's own reference, and what one part of this package says to another.
HOSTS = (keras.optimizers.Optimizer, keras.callbacks.Callback, keras.layers.Layer, keras.Model)
OF_KERAS = {name for host in HOSTS for name in dir(host)}
WITHIN = {
    "add_variable_like", "clip_aggregated", "declared_by", "gather", "has_trust_ratios",
    "lower", "own_parts", "plan_for", "power", "rule", "settings_class",
    "slots_of", "step", "updates", "value", "without_frozen", "without_gradient",
    "without_shown",
}  # fmt: skip


def is_left_out(app, what, name, value, skip, options):
    """Whether a member of a class, or of a command's module, is no part of the reference."""
    module = getattr(getattr(value, "fget", value), "__module__", None) or ""
    left_out = name in OF_KERAS | WITHIN or not module.startswith("tf_lamb") or what == "module"
    return True if left_out else None  # None: as autodoc itself would


def as_inherited(app, what, name, value, options, lines):
    """The docstring of a class that has none is its base class's, as `help` shows it."""
    if what == "class" and not any(lines):
        lines[:] = (inspect.getdoc(value) or "").splitlines()


def as_restructured_text(app, what, name, value, options, lines):
    """Docstrings are written to be read in an editor: equations and bars become literal here."""
    plain, literal, out = False, False, []  # plain: within `Args:` and its like, or within a list
    for line in lines:
        indented = line.startswith("    ")
        plain = bool(re.match(r"[A-Z]\w+:$|\* ", line)) or (plain and (indented or not line))
        equation = indented and not plain
        if equation and not literal:
            out += ["", ".. code-block:: text", ""]
        literal = equation or (literal and not line)
        if not equation and not line.lstrip().startswith((">>>", "...")):
            # No emphasis and no substitution; but a list may begin with a star.
            line = re.sub(r"(`[^`]*`|^\* )|([|*])", lambda m: m[1] or "\\" + m[2], line)
        out.append(line)
    lines[:] = out


def setup(app):
    app.connect("autodoc-skip-member", is_left_out)
    app.connect("autodoc-process-docstring", as_inherited, priority=50)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=100)
