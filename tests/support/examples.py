"""The examples of docstrings, run as a reader would type them."""

import doctest
import inspect


def run_example(thing, least):
    """Runs the example of a docstring, which may be inherited and has so many lines at least."""
    text = inspect.getdoc(thing)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(doctest.DocTestParser().get_doctest(text, {}, thing.__name__, None, None))
    assert runner.tries >= least
    assert not runner.failures
