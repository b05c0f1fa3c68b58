"""The cases, by what they are about. Each module notes its own in harness.CASES: all are imported."""
import importlib
import pkgutil

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
    importlib.import_module("." + _module, __name__)
