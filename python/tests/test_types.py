"""The stub of the native part names what is there, and nothing else."""

import ast
import inspect
import pathlib

import forebay
from forebay import _native


def declared():
    """Class (or None) to the names that the stub declares in it."""
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


def test_every_public_name_says_what_it_does():
    for name in forebay.__all__:
        if name != "__version__":
            assert (getattr(forebay, name).__doc__ or "").strip(), name
