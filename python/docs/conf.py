"""Sphinx's configuration of the API reference, which `make docs` writes to target/docs. All its
content comes from docstrings."""

import re

import forebay

project = "forebay"
author = "the Forebay authors"
release = forebay.__version__
extensions = ["sphinx.ext.autodoc"]
html_theme = "alabaster"
html_theme_options = {"description": "Pools, files, collections, data loaders", "page_width": "75em"}
html_copy_source = False
autodoc_default_options = {"members": True, "member-order": "bysource", "undoc-members": False}
autodoc_typehints = "signature"
autodoc_mock_imports = []
python_use_unqualified_type_names = True
default_role = "code"
nitpicky = False


def as_rest(_app, _what, _name, _obj, _options, lines):
    """Converts docstrings from Markdown, as in the project's pages, to reST: `code`, lists,
    indented blocks."""
    made, block = [], False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not block and (not made or not made[-1].strip()):
            made += ["::", ""]
            block = True
        elif line.strip() and not indented:
            block = False
        if line.startswith("- ") and made and made[-1].strip() and not made[-1].startswith(("- ", "  ")):
            made.append("")
        made.append(line if block else re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line))
    lines[:] = made


def setup(app):
    app.connect("autodoc-process-docstring", as_rest)
