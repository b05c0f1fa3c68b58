"""The fixtures of the package's own tests."""

import importlib.util
import pathlib

_path = pathlib.Path(__file__).resolve().parents[2] / "tests" / "conftest.py"
_spec = importlib.util.spec_from_file_location("forebay_conftest", _path)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
pool, session_pool, pytest_unconfigure = _module.pool, _module.session_pool, _module.pytest_unconfigure
