"""The cases, by what they are about. All modules are imported, which registers them."""
import importlib
import pkgutil

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
    importlib.import_module("." + _module, __name__)
