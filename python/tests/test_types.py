"""Checks that the stub of the native module names its content, and nothing else."""

import ast
import inspect
import pathlib

import forebay
from forebay import _native


def declared():
    """Returns, for each class (or None), the names that the stub declares in it."""
    stub = pathlib.Path(forebay.__file__).with_name("_native.pyi")
    names = {}
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ClassDef):
            inside = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
            inside |= {n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}
            for base in node.bases:
                inside |= names[base.id]
            names[node.name] = {n for n in inside if not n.startswith("__")}
    return names


def test_the_stub_is_true():
    stub = declared()
    for name, kind in inspect.getmembers(_native, inspect.isclass):
        there = {n for n in vars(kind) if not n.startswith("__")}
        assert there == stub.pop(name), name
    assert set(stub) == {"_Memory"}


def undocumented(module, names):
    """Returns public names without a docstring, also those of public classes."""
    for name in names:
        what = getattr(module, name)
        if not inspect.isclass(what):
            if inspect.isroutine(what) and not (what.__doc__ or "").strip():
                yield name
            continue
        inside = vars(what) if what is forebay.PoolFile else dir(what)
        for inner in ["__doc__", *inside]:
            thing = inspect.getattr_static(what, inner)
            thing = getattr(thing, "__func__", thing)
            documented = callable(thing) or isinstance(thing, property) or inspect.isgetsetdescriptor(thing)
            text = thing if inner == "__doc__" else thing.__doc__ if documented and not inner.startswith("_") else "-"
            if not (text or "").strip():
                yield "%s.%s" % (name, inner)


def test_every_public_name_says_what_it_does():
    from forebay import campaign, data, hdf5

    for module, names in [(forebay, [n for n in forebay.__all__ if n != "__version__"]), (data, data.__all__),
                          (campaign, campaign.__all__), (hdf5, ["configuration", "enable", "open", "plugin_directory"])]:
        assert list(undocumented(module, names)) == []
