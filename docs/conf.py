"""The site: `make docs` writes it to .build/site, from these pages and from the docstrings.

Sphinx, because its autodoc reads what Keras's classes are once they are imported, signatures and
all; MyST, so that the pages stay the Markdown that a code host shows; Furo, because it serves its
own fonts and scripts and asks no other machine for any.
"""

import inspect
import os
import re
import textwrap

os.environ["KERAS_BACKEND"] = "jax"  # it is imported sooner than TensorFlow
import keras
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

import tf_lamb
from tf_lamb.api.optimizers import settings

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
html_js_files = ["site.js"]
html_favicon = "static/favicon.svg"
pygments_dark_style = "a11y-dark"  # beside the a11y-light of Furo
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
    "accumulate", "add_variable_like", "clip_aggregated", "declare_slots", "has_trust_ratios",
    "lower", "plan_for", "power", "replica_parts", "rule", "settings_class",
    "slots_of", "step", "updates", "value", "without_frozen", "without_gradient",
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


def without_shared_arguments(app, what, name, value, options, lines):
    """An optimizer's page names the arguments that all share: `shared-arguments` explains them."""
    if what != "class" or not hasattr(value, "settings_class"):
        return
    keys, text, names = value.settings_class.keys, "\n".join(lines) + "\n", []
    for argument, entry in settings._DOCS_BY_ARGUMENT.items():
        entry = entry.replace("{{keys}}", "\n".join(settings._DOCS_BY_KEY[key] for key in keys))
        if (entry := textwrap.indent(entry, "    ") + "\n") in text:
            text = text.replace(entry, "")
            names.append(argument)
    *first, last = names
    listed = ", ".join(f"`{each}`" for each in first) + f" and `{last}`"
    their_keys = ", ".join(f'"{key}"' for key in keys)
    told = (
        f"And :ref:`the arguments that all optimizers share <shared-arguments>`: {listed}. "
        f"The keys of its `treatments` are {their_keys}.\n\n"
    )
    lines[:] = text.replace("\nRaises:\n", f"\n{told}Raises:\n", 1).splitlines()


def escaped(line):
    """No emphasis and no substitution; but a list may begin with a star."""
    return re.sub(r"(`[^`]*`|^\* )|([|*])", lambda m: m[1] or "\\" + m[2], line)


class SharedArguments(SphinxDirective):
    """Lists what `without_shared_arguments` leaves out, once, in the words of the docstrings."""

    def run(self):
        """Returns a definition list; the keys of `treatments` are a list within it."""
        lines = []
        for name, entry in settings._DOCS_BY_ARGUMENT.items():
            text = entry.partition(": ")[2].replace("{{keys}}", "")
            lines += [
                f"``{name}``",
                *(f"    {escaped(line.strip())}" for line in text.splitlines() if line),
            ]
            for key in settings._DOCS_BY_KEY.values() if name == "treatments" else ():
                first, *others = map(escaped, textwrap.dedent(key).splitlines())
                lines += ["", f"    * {first}", *(f"      {other.strip()}" for other in others)]
            lines.append("")
        listed = nodes.container()
        self.state.nested_parse(StringList(lines), self.content_offset, listed)
        return listed.children


def as_restructured_text(app, what, name, value, options, lines):
    """Docstrings are written for an editor: equations and bars become literal, and files links."""
    plain, literal, out = False, False, []  # plain: within `Args:` and its like, or within a list
    for line in lines:
        indented = line.startswith("    ")
        plain = bool(re.match(r"[A-Z]\w+:$|\* ", line)) or (plain and (indented or not line))
        equation = indented and not plain
        if equation and not literal:
            out += ["", ".. code-block:: text", ""]
        literal = equation or (literal and not line)
        if not equation and not line.lstrip().startswith((">>>", "...")):
            line = re.sub(r"\bdocs/([\w/]+)\.md", r":doc:`/\1`", escaped(line))
        out.append(line)
    lines[:] = out


def setup(app):
    app.connect("autodoc-skip-member", is_left_out)
    app.add_directive("shared-arguments", SharedArguments)
    app.connect("autodoc-process-docstring", as_inherited, priority=50)
    app.connect("autodoc-process-docstring", without_shared_arguments, priority=75)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=100)
