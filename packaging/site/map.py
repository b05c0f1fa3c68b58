#!/usr/bin/env python3
"""Writes docs/map.md: what each crate, each folder of modules and each suite of tests is for. `make map`.

A row is the first sentence of the folder's own head: the `//!` lines of lib.rs, main.rs or the module's file, and the
docstring of a suite's run.py. So the map says what the code says, and follows it when folders move. Crates are the
members that the root Cargo.toml names. A folder without a head is an error.

    map.py            writes the page
    map.py --check    fails if the page is stale (crates/cli/tests/docs.rs)
"""
import argparse
import ast
import glob
import os
import re
import sys
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = "docs/map.md"
HEAD = """# Map of the folders

Generated from the heads of the files (`make map`); `crates/cli/tests/docs.rs` fails when the page
is stale. How the parts work together is in [ARCHITECTURE.md](../ARCHITECTURE.md). Each source file
opens with a comment that says what it is for and what it promises.
"""
# An end of a sentence: not that of an abbreviation.
END = re.compile(r"(?<!e\.g)(?<!i\.e)\.(?=\s|$)")


class Failed(Exception):
    """A folder without a head, or a stale page; the text says which."""


def first_sentence(text):
    """Of the first paragraph, as Markdown in a cell of a table."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    sentence = END.split(paragraph)[0].rstrip(":.")
    if not sentence.endswith("?"):
        sentence += "."
    sentence = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence)
    sentence = re.sub(r"\[(`[^\]]*`)\]", r"\1", sentence)
    return sentence.replace("|", "\\|")


def head_of_module(path):
    """The sentence of a Rust file's `//!` lines."""
    with open(os.path.join(ROOT, path)) as f:
        lines = [line[3:].strip() for line in f if line.startswith("//!")]
    if not lines or not lines[0]:
        raise Failed("%s has no head (//!)" % path)
    return first_sentence("\n".join(lines))


def head_of_suite(path):
    with open(os.path.join(ROOT, path)) as f:
        text = ast.get_docstring(ast.parse(f.read()))
    if not text:
        raise Failed("%s has no docstring" % path)
    return first_sentence(text)


def existing(*paths):
    return next((path for path in paths if os.path.isfile(os.path.join(ROOT, path))), None)


def crates():
    """The folders of all members of the workspace."""
    with open(os.path.join(ROOT, "Cargo.toml"), "rb") as f:
        workspace = tomllib.load(f)["workspace"]
    found = set()
    for member in workspace["members"]:
        for manifest in glob.glob(os.path.join(ROOT, member, "Cargo.toml")):
            found.add(os.path.relpath(os.path.dirname(manifest), ROOT))
    return sorted(found - set(workspace.get("exclude", [])))


def rows_of_crate(crate):
    """The crate, then its folders of modules, each with its sentence."""
    source = existing(crate + "/src/lib.rs", crate + "/src/main.rs")
    if source is None:
        raise Failed("%s has neither src/lib.rs nor src/main.rs" % crate)
    yield "**%s**" % os.path.basename(crate), head_of_module(source)
    yield from rows_of_folders(crate, crate + "/src")


def rows_of_folders(crate, folder):
    """The folders of modules below a folder, each before those below it."""
    for name in sorted(os.listdir(os.path.join(ROOT, folder))):
        below = folder + "/" + name
        if name == "tests" or not glob.glob(os.path.join(ROOT, below, "*.rs")):
            continue
        module = existing(below + "/mod.rs", below + ".rs")
        if module is None:
            raise Failed("%s has no module of its name" % below)
        yield "`%s/`" % os.path.relpath(below, crate + "/src"), head_of_module(module)
        yield from rows_of_folders(crate, below)


def table(title, rows):
    return "\n## %s\n\n| folder | is for |\n|---|---|\n%s" % (
        title, "".join("| %s | %s |\n" % row for row in rows))


def page():
    wings = {}
    for crate in crates():
        wings.setdefault(os.path.dirname(crate), []).extend(rows_of_crate(crate))
    tables = [table("`%s/`" % wing, rows) for wing, rows in sorted(wings.items())]
    suites = sorted(glob.glob(os.path.join(ROOT, "tests/*/run.py")))
    suites = [os.path.relpath(path, ROOT) for path in suites]
    tables.append(table("`tests/`", [
        ("**%s**" % os.path.basename(os.path.dirname(path)), head_of_suite(path)) for path in suites]))
    return HEAD + "".join(tables)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only look whether the page is up to date")
    options = parser.parse_args()
    text, place = page(), os.path.join(ROOT, PAGE)
    if not options.check:
        with open(place, "w") as f:
            f.write(text)
        return
    with open(place) as f:
        if f.read() != text:
            raise Failed("%s is stale: make map" % PAGE)


if __name__ == "__main__":
    try:
        main()
    except Failed as why:
        sys.exit("map.py: %s" % why)
