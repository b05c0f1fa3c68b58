"""Pages are written as GitHub reads Markdown; here they are changed to what Python's Markdown wants."""
import re

FENCE = re.compile(r"^\s*```")
ITEM = re.compile(r"^\s*([-*+]|\d+[.)])\s")


def on_page_markdown(markdown, **_):
    """A list that follows a paragraph begins behind an empty line."""
    lines, is_code, before = [], False, ""
    for line in markdown.split("\n"):
        if FENCE.match(line):
            is_code = not is_code
        elif not is_code and ITEM.match(line) and before.strip() and not ITEM.match(before) and before[0] != " ":
            lines.append("")
        lines.append(line)
        before = line
    return "\n".join(lines)


def slugify(text, separator):
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)
