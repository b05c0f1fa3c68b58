#!/usr/bin/env python3
"""Makes the documentation as a web site: target/site/index.html. `make site`.

Pages are those of the repository as they stand: README.md and others at the top, and docs/, with what they link to.
Links between them work unchanged, because the site has the repository's folders. Made besides: man pages (`forebay
man`), the reference of the headers (Doxygen), lists of folders that pages link to.

A link that leads nowhere, also to a heading, is an error, as is a page that the navigation (mkdocs.yml) lacks. Needs
doxygen and mandoc (tests/install-packages), PyPI for mkdocs (requirements.txt), and what `make build` has built.
"""
import argparse
import collections
import html
import html.parser
import os
import re
import shutil
import subprocess
import sys
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tests", "python"))

TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")))
SOURCE, SITE = os.path.join(TARGET, "site-source"), os.path.join(TARGET, "site")
REQUIREMENTS = os.path.join(HERE, "requirements.txt")
# Pages and folders of pages that are shown; what they link to comes along.
SHOWN = ["README.md", "ARCHITECTURE.md", "HACKING.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs"]
LINK = re.compile(r"\]\(([^)\s]+)")
# Seconds for each program that is called.
LIMIT = 300


class Failed(Exception):
    """Something that isn't as it has to be; its text says what."""


def run(*command, **more):
    try:
        done = subprocess.run(command, timeout=LIMIT, cwd=ROOT, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, **more)
    except FileNotFoundError:
        cure = "make build" if "/" in command[0] else "tests/install-packages"
        raise Failed("%s isn't here: %s" % (command[0], cure)) from None
    if done.returncode:
        raise Failed("%s: exit code %d\n%s" % (" ".join(command), done.returncode, done.stdout))
    return done.stdout


def written(path, text):
    path = os.path.join(SOURCE, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(text)


def outside_code(text, change):
    """A page with its parts outside of blocks of code changed."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def pages():
    """Copies pages and all that they link to into SOURCE."""
    waiting = collections.deque()
    for name in SHOWN:
        if os.path.isdir(os.path.join(ROOT, name)):
            for directory, _, files in os.walk(os.path.join(ROOT, name)):
                waiting += [os.path.relpath(os.path.join(directory, f), ROOT) for f in files]
        else:
            waiting.append(name)
    done = set()
    while waiting:
        path = waiting.popleft()
        if path in done:
            continue
        done.add(path)
        if os.path.isdir(os.path.join(ROOT, path)):
            names = sorted(os.listdir(os.path.join(ROOT, path)))
            kept = [n for n in names if os.path.isfile(os.path.join(ROOT, path, n)) and not n.startswith(".")]
            waiting += [os.path.join(path, n) for n in kept]
            written(path + "/index.md", "# %s/\n\n%s\n" % (path, "\n".join("- [%s](%s)" % (n, n) for n in kept)))
            continue
        target = os.path.join(SOURCE, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not path.endswith(".md"):
            shutil.copyfile(os.path.join(ROOT, path), target)
            continue

        def link(match):
            place, mark, heading = match.group(1).partition("#")
            if not place or "://" in place or place.startswith("mailto:"):
                return match.group()
            leads = os.path.normpath(os.path.join(os.path.dirname(path), place))
            full = os.path.join(ROOT, leads)
            if leads.startswith("..") or not os.path.exists(full):
                raise Failed("%s: nothing at %s" % (path, place))
            waiting.append(leads)
            if os.path.isdir(full):
                has_page = os.path.exists(os.path.join(full, "README.md"))
                if has_page:
                    waiting[-1] = os.path.join(leads, "README.md")
                place = place.rstrip("/") + ("/README.md" if has_page else "/index.md")
            return "](" + place + mark + heading

        with open(os.path.join(ROOT, path)) as f:
            written(path, outside_code(f.read(), lambda part: LINK.sub(link, part)))
    return len(done)


def man_pages(forebay):
    """Pages of what `forebay man` writes, and a list of them."""
    directory = os.path.join(TARGET, "site-man")
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    run(forebay, "man", directory)
    rows = []
    for name in sorted(os.listdir(directory)):
        page = name.rsplit(".", 1)[0]
        text = run("mandoc", "-T", "html", "-O", "fragment", os.path.join(directory, name))
        # Headings below that of the page; anchors are this page's own.
        text = re.sub(r"<(/?)h1\b", r"<\1h2", text)
        does = re.search(r'id="NAME".*?<p class="Pp">.*? - (.*?)</p>', text, re.S)
        if not does:
            raise Failed("%s doesn't say what it does" % name)
        rows.append("| [%s](%s.md) | %s |" % (page, page, does.group(1).replace("\n", " ").replace("|", "\\|")))
        written("docs/reference/man/%s.md" % page, "# %s(1)\n\n%s\n" % (page, text.replace("\n\n", "\n")))
    head = "# Man pages\n\nThe command makes these pages itself (`forebay man DIR`); `make install` installs them.\n"
    written("docs/reference/man/index.md", head + "\n| page | does |\n|---|---|\n" + "\n".join(rows) + "\n")
    return len(rows)


C_PAGE = """# The C and C++ interface

[The reference](c/index.html) is made of the comments of the headers, by Doxygen. Concepts, and rules for threads, forks
and errors, are in [verbs](../howto/verbs.md); [install](../howto/install.md#programs-that-use-the-verbs) says how to link.

| header | for |
|---|---|
"""


def c_reference():
    """What Doxygen makes of the headers, and the page that leads there."""
    output = os.path.join(SOURCE, "docs/reference/c")
    os.makedirs(output)
    with open(os.path.join(HERE, "Doxyfile")) as f:
        settings = f.read() + "OUTPUT_DIRECTORY = %s\nHTML_OUTPUT = .\n" % output
    said = run("doxygen", "-", input=settings)
    if "warning:" in said or "error:" in said:
        raise Failed("doxygen:\n" + said)
    rows = []
    for name in sorted(os.listdir(os.path.join(ROOT, "include/forebay"))):
        with open(os.path.join(ROOT, "include/forebay", name)) as f:
            first = re.sub(r"^/\* ([a-z0-9_]*\.hp*: )?", "", f.read(400)).split(". ")[0].split(".\n")[0]
        written_as = re.sub("_", "__", name).replace(".", "_8")
        if not os.path.exists(os.path.join(output, written_as + ".html")):
            raise Failed("doxygen has made no page of %s" % name)
        what = re.sub(r"\s*\n \*\s*", " ", first).split("  ")[0]
        rows.append("| [%s](c/%s.html) | %s |" % (name, written_as, what))
    written("docs/reference/c-interface.md", C_PAGE + "\n".join(rows) + "\n")
    return len(rows)


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page, and what a browser loads for it."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.loaded = [], set(), []
        with open(path, errors="replace") as f:
            self.feed(f.read())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        links = [attributes[name] for name in ("href", "src") if attributes.get(name)]
        self.links += links
        if tag != "a":
            self.loaded += links


def check():
    """Each link of each page leads to a file and an anchor of the site; nothing is loaded from elsewhere."""
    known, bad, count = {}, [], 0
    # Some of Doxygen's own lists have links to headings that it leaves out.
    doxygens = os.path.join(SITE, "docs", "reference", "c") + os.sep

    def page(path):
        if path not in known:
            known[path] = Page(path)
        return known[path]

    for directory, _, names in os.walk(SITE):
        for path in [os.path.join(directory, name) for name in names if name.endswith(".html") and name != "404.html"]:
            for link in page(path).links:
                parts = urllib.parse.urlsplit(link)
                if parts.scheme or parts.netloc:
                    if link in page(path).loaded and parts.scheme in ("http", "https", ""):
                        bad.append("%s: loads %s" % (os.path.relpath(path, SITE), link))
                    continue
                at = urllib.parse.unquote(parts.path)
                target = os.path.normpath(os.path.join(os.path.dirname(path), at)) if at else path
                count += 1
                if not os.path.isfile(target):
                    bad.append("%s: nothing at %s" % (os.path.relpath(path, SITE), link))
                elif parts.fragment and target.endswith(".html") and not target.startswith(doxygens):
                    if urllib.parse.unquote(parts.fragment) not in page(target).anchors:
                        bad.append("%s: no anchor %s" % (os.path.relpath(path, SITE), link))
    if bad:
        raise Failed("%d links lead nowhere:\n%s" % (len(bad), "\n".join(bad[:40])))
    if count < 1000:
        raise Failed("only %d links were found" % count)
    return count


def environment():
    """The Python with mkdocs."""
    import run as python_tests
    return python_tests.environment(sys.executable, ["-r", REQUIREMENTS], "-site")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", default=os.path.join(TARGET, "release", "forebay"),
                        help="the command whose man pages are shown")
    parser.add_argument("--prepare", action="store_true", help="only fetch mkdocs")
    options = parser.parse_args()
    python = environment()
    if options.prepare:
        return
    for place in (SOURCE, SITE):
        shutil.rmtree(place, ignore_errors=True)
    copied = pages()
    commands, headers = man_pages(options.forebay), c_reference()
    shutil.copyfile(os.path.join(HERE, "style.css"), os.path.join(SOURCE, "style.css"))
    with open(os.path.join(HERE, "mkdocs.yml")) as f:
        settings = f.read()
    for place, value in (("@SOURCE@", SOURCE), ("@SITE@", SITE), ("hooks.py", os.path.join(HERE, "hooks.py"))):
        settings = settings.replace(place, value)
    settings = settings.replace('"@SLUGIFY@"', "!!python/name:hooks.slugify")
    config = os.path.join(TARGET, "site-mkdocs.yml")
    with open(config, "w") as f:
        f.write(settings)
    paths = {**os.environ, "PYTHONPATH": HERE, "PYTHONDONTWRITEBYTECODE": "1", "NO_MKDOCS_2_WARNING": "1"}
    run(python, "-m", "mkdocs", "build", "--strict", "--config-file", config, env=paths)
    links = check()
    print("passed site: %d files of the repository, %d man pages, %d headers, %d links" % (
        copied, commands, headers, links))
    print("%s/index.html" % SITE)
    print("1 passed, 0 failed")


if __name__ == "__main__":
    try:
        main()
    except Failed as why:
        print("FAILED site: %s" % why)
        print("0 passed, 1 failed")
        sys.exit(1)
