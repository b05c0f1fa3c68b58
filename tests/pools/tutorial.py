"""The commands of docs/tutorial.md, and what they have to print.

A block of `sh` is run; lines of the next block of `text` have to be in its output, in their order: `...` stands
for anything, a line `...` for any lines. Blocks of `bash` aren't run: they need a release or a cluster.
"""
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Printed between the outputs of blocks.
MARK = "---- end of block %d ----"


def blocks(page="docs/tutorial.md"):
    """[(commands, lines of output or None)] of a page."""
    with open(os.path.join(ROOT, page)) as f:
        found = re.findall(r"^```(\w+)\n(.*?)^```$", f.read(), re.M | re.S)
    result = []
    for language, text in found:
        if language == "sh":
            result.append((text, None))
        elif language == "text" and result and result[-1][1] is None:
            result[-1] = (result[-1][0], text.rstrip("\n").split("\n"))
    return result


def script():
    """All commands, one shell's input; it ends at the first that fails. Both outputs are one."""
    parts = ["exec 2>&1", "set -e"]
    for n, (commands, _) in enumerate(blocks()):
        parts += [commands.rstrip("\n"), "echo '%s'" % (MARK % n)]
    return "\n".join(parts) + "\n"


def missing(output):
    """The first line that a page promises and that isn't in the output, with the block; None: all are there."""
    for n, (commands, wanted) in enumerate(blocks()):
        said, mark, output = output.partition(MARK % n + "\n")
        if not mark:
            return "block %d has failed:\n%s\n%s" % (n, commands, said)
        lines = said.split("\n")
        at = 0
        for line in wanted or []:
            if line == "...":
                continue
            pattern = re.compile(".*".join(re.escape(part) for part in line.split("...")))
            while at < len(lines) and not pattern.fullmatch(lines[at]):
                at += 1
            if at == len(lines):
                return "block %d doesn't print %r, or not in this order:\n%s\n%s" % (n, line, commands, said)
            at += 1
    return None
