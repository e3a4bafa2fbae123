"""Our classes are registered with a host as soon as both are imported, in whatever order.

A saved model that was compiled with one of ours loads only where its host knows the class, and a
script that loads one imports this package and the host, and nothing of ours by name.
"""

import contextlib
import importlib
import importlib.abc
import sys

HOSTS = ("keras", "tf_keras")


def register_with_hosts():
    """Opens the door of each host that is imported, and of the others when they will be."""
    for host in HOSTS:
        if host in sys.modules:
            _open_door(host)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _open_door(host):
    # A host that lacks its backend says so itself, to whoever uses it.
    with contextlib.suppress(ImportError):
        importlib.import_module(f"tf_lamb.{host}")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds a host as the finders behind it do, with a loader that opens our door to it."""

    def find_spec(self, name, path=None, target=None):
        if name not in HOSTS:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)):
                if spec.loader is not None:  # not an empty folder of that name
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """The host's own loader, until the host is loaded."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _open_door(module.__name__)
