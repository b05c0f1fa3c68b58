"""Reports of real runs, in a browser: their totals are what strace counts for the same run outside.

Each program runs twice on the same input and below the same path: first in a plain directory under
strace, then with `forebay run --report` where that path leads into the pool. Chromium opens the
page, with scripts and without; the numbers that it shows have to be those of strace.

The rule of comparison is exact. It has these parts:

- A system call counts if one of its paths or its first descriptor is one of the directory. KINDS
  says which kind of operation it is.
- isatty(3) asks for a terminal's settings: ENOTTY is an answer to it, not a failure.
- fcntl with F_GETFD or F_SETFD is about a descriptor, not about a file: the kernel answers it.
- A log holds times and process ids. Its other text is the same in both runs, and the bytes that it
  is longer or shorter by are added.
- A directory that is opened isn't one of the page's files.

bowtie2 writes its alignments by a thread of its own, which takes what is there: the number of these
writes differs between two runs. They go into a pipe to samtools, which does the same each time.
"""
import collections
import glob
import gzip
import html.parser
import os
import re
import shutil

from browser import Browser
from harness import Failed, Skipped, case

KINDS = {
    "open": "open openat openat2",
    "create": "creat mknod mknodat",
    "close": "close",
    "read": "read pread64 readv preadv preadv2",
    "write": "write pwrite64 writev pwritev pwritev2 sendfile copy_file_range splice",
    "seek": "lseek",
    "stat": "stat lstat fstat newfstatat statx statfs fstatfs",
    "list": "getdents getdents64",
    "access": "access faccessat faccessat2 chdir fchdir",
    "mkdir": "mkdir mkdirat",
    "remove": "unlink unlinkat rmdir",
    "rename": "rename renameat renameat2",
    "link": "link linkat symlink symlinkat readlink readlinkat",
    "attributes": "chmod fchmod fchmodat chown fchown lchown fchownat utime utimes futimesat utimensat",
    "truncate": "truncate ftruncate fallocate",
    "sync": "fsync fdatasync sync_file_range syncfs",
    "lock": "flock",
    "map": "mmap msync",
    "other": "fcntl ioctl dup dup2 dup3 readahead fadvise64",
}
KIND_OF = {call: kind for kind, calls in KINDS.items() for call in calls.split()}
# What differs in a log from run to run: times and process ids.
CHANGING = re.compile(r"\d+(?::\d+)+|(?<=PID    : )\d+|[\d.]+ s\b")


# Of the page's table of files.
COLUMNS = ("Reads", "Read", "Writes", "Written", "Opens")


class Counts:
    """Numbers, bytes and errors, by kind; by file, what COLUMNS says."""

    def __init__(self):
        self.kinds = collections.defaultdict(lambda: [0, 0, 0])
        self.files = collections.defaultdict(lambda: [0] * len(COLUMNS))
        self.renamed = {}

    def add(self, call, args, result, top, error):
        kind = KIND_OF[call]
        if kind == "open" and "O_CREAT" in args:
            kind = "create"
        paths = paths_of(call, args)
        inside = [p for p in paths if p == top or p.startswith(top + "/")]
        if not inside or call == "fcntl" and re.search(r", F_[GS]ETFD\b", args):
            return
        counts = self.kinds[kind]
        counts[0] += 1
        is_answer = call == "ioctl" and error == "ENOTTY" and re.search(r", (TC|TIOC)", args)
        counts[2] += result < 0 and not is_answer
        if kind in ("read", "write") and result >= 0:
            counts[1] += result
            file = self.files[inside[0][len(top):]]
            at = 0 if kind == "read" else 2
            file[at] += 1
            file[at + 1] += result
        if kind in ("open", "create") and result >= 0 and "O_DIRECTORY" not in args:
            self.files[inside[0][len(top):]][4] += 1
        if kind == "rename" and result == 0:
            self.renamed[inside[1][len(top):]] = inside[0][len(top):]

    def by_file(self):
        """By the first name of each file, as in the report."""
        found = collections.defaultdict(lambda: [0] * len(COLUMNS))
        for name, counts in self.files.items():
            while name in self.renamed:
                name = self.renamed[name]
            found[name] = [a + b for a, b in zip(found[name], counts)]
        return dict(found)


def paths_of(call, args):
    """The files that a call concerns: strace has written the path behind each descriptor."""
    kind = KIND_OF[call]
    if kind in ("read", "write", "close", "seek", "list", "map", "other", "lock"):
        # mmap's descriptor is its last argument but one; dup2 closes its second one.
        every = args if call in ("mmap", "dup2", "dup3") else args.split(", ", 1)[0]
        return re.findall(r"\b\d+<(/[^>]*)>", every)
    found = []
    # A path, with the directory that it begins at; or a descriptor alone.
    for at, path in re.findall(r'(?:\w+<(/[^>]*)>)?(?:(?:, |^)"((?:[^"\\]|\\.)*)")?', args):
        if at or path:
            found.append(os.path.join(at, path) if path else at)
    return found


def traced(t, words, top, env):
    """Runs a program under strace, which counts its system calls on files below `top`."""
    log = os.path.join(t.work, "strace")
    calls = ",".join("?" + call for call in KIND_OF)
    t.command(["strace", "-ff", "-y", "-qq", "-s", "0", "-e", "trace=" + calls, "-o", log, *words], env=env, timeout=40)
    counts = Counts()
    for name in glob.glob(log + ".*"):
        with open(name, errors="backslashreplace") as f:
            for line in f:
                found = re.match(r"(\w+)\((.*)\) += (-?\d+|\?)(?: (E\w+))?", line)
                if found and found.group(3) != "?":
                    counts.add(found.group(1), found.group(2), int(found.group(3)), top, found.group(4))
                elif top + "/" in line and not line.startswith(("+++", "---")):
                    raise Failed("a line of strace isn't understood: " + line)
    return counts


class Tables(html.parser.HTMLParser):
    """The tables of a page by caption, and its cards: cells are (number to sort by, text)."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.cards, self.buttons = {}, {}, 0
        self.whole = False
        self.row = self.cell = self.term = self.caption = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "div" and "wide" in attrs.get("class", ""):
            self.caption = attrs["aria-label"]
            self.tables[self.caption] = []
        elif tag == "tr":
            self.row = []
            self.tables[self.caption].append(self.row)
        elif tag in ("td", "th"):
            self.cell = [attrs.get("data-v"), ""]
            self.row.append(self.cell)
        elif tag == "code" and self.cell:
            # A long path is shortened: its title is the whole.
            self.cell[1] += attrs.get("title", "")
            self.whole = "title" in attrs
        elif tag in ("dt", "dd"):
            self.term = [tag, ""]
        elif tag == "button":
            self.buttons += 1

    def handle_data(self, data):
        if self.cell is not None and not self.whole:
            self.cell[1] += data
        if self.term is not None:
            self.term[1] += data

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.cell = None
        elif tag == "code":
            self.whole = False
        elif tag == "dt":
            self.name = self.term[1]
            self.term = None
        elif tag == "dd":
            self.cards.setdefault(self.name, self.term[1])
            self.term = None

    def table(self, caption):
        """Rows of the table whose caption begins with this pattern, as dictionaries."""
        name = next((c for c in self.tables if re.match(caption, c)), None)
        if name is None:
            raise Failed("no table %r among %s" % (caption, sorted(self.tables)))
        head, *rows = self.tables[name]
        return [{h[1]: cell for h, cell in zip(head, row)} for row in rows]


def shown(n):
    """Bytes as the page writes them: three digits and a unit."""
    units = ["B", "KiB", "MiB", "GiB"]
    n = float(n)
    while n >= 1000 and len(units) > 1:
        n /= 1024
        units.pop(0)
    digits = 0 if n == int(n) or n >= 100 else 1 if n >= 10 else 2
    return "%.*f %s" % (digits, n, units[0])


def in_a_browser(t, browser, path):
    """What the page shows with scripts; without, it is the same. It loads nothing, and has no errors."""
    shown, plain = browser.open(path), browser.open(path, script=False)
    with_scripts, without = Tables(shown.source()), Tables(plain.source())
    t.ok("<h2 id=\"incomplete\">" not in shown.source(), "the page says that it isn't complete")
    t.ok(with_scripts.buttons > 10, "the page's script has made no buttons: %d" % with_scripts.buttons)
    t.ok(without.buttons == 0, "a script ran")
    t.ok(with_scripts.tables == without.tables and with_scripts.cards == without.cards, "scripts change numbers")
    for width in WIDTHS:
        fits(t, shown, width)
    for page in (shown, plain):
        t.ok(not page.complaints(), "on the console, or loaded: %s" % page.complaints())
    return with_scripts


WIDTHS = (1600, 768, 360)
# What is wider than the screen.
WIDER = """
for (const d of document.querySelectorAll("details")) d.open = true;
[...document.querySelectorAll("main *")].filter((e) => !e.parentElement.closest(".wide, svg")
  && e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
  .map((e) => e.tagName + " " + e.textContent.slice(0, 40))"""


def fits(t, page, width):
    """On wide and narrow screens nothing stands out: tables scroll in boxes of their own."""
    page.wide(width)
    sizes = page.evaluate("[innerWidth, document.documentElement.scrollWidth]")
    out = page.evaluate(WIDER)
    t.ok(sizes == [width, width] and not out, "at a width of %d: %s wide, %s" % (width, sizes, out[:5]))


def compared(t, script, name, source, logs, env=None):
    """Runs `script` on a copy of `source` outside and in a pool; checks the page of the second run."""
    if not shutil.which("strace"):
        raise Skipped("strace is not installed")
    with Browser(t) as browser:
        compare(t, browser, script, name, source, logs, env)


def compare(t, browser, script, name, source, logs, env):
    top, ran, back, page = (os.path.join(t.work, x) for x in ("top", "ran", "back", "page.html"))
    words = ["bash", "-euo", "pipefail", "-c", script, "bash", os.path.join(top, name)]
    shutil.copytree(source, os.path.join(top, name))
    expected = traced(t, words, top, env)
    os.rename(top, ran)
    t.fb("run", "--media", "memory:64M", "--mount", top, "--report", page, "--in", "%s:/%s" % (source, name),
         "--out", "/%s:%s" % (name, back), "--", *words, env=env, timeout=40)
    longer = same_results(t, os.path.join(ran, name), back, logs)
    expected.kinds["write"][1] += sum(longer.values())
    for log, bytes in longer.items():
        expected.files["/%s/%s" % (name, log)][3] += bytes

    page_shows = in_a_browser(t, browser, page)
    found = {row["Kind"][1]: row for row in page_shows.table("All operations")}
    files = {row["Path"][1].split(" also ")[0]: row for row in page_shows.table(r"All \d+ files")}
    wanted = expected.by_file()
    t.ok(sorted(wanted) == sorted(files), "only one has these files: %s" % sorted(set(wanted) ^ set(files)))
    t.ok(sorted(found) == sorted(expected.kinds), "kinds: %s, strace has %s" % (sorted(found), sorted(expected.kinds)))
    for kind, wanted in expected.kinds.items():
        row = found[kind]
        got = [int(row[column][0]) for column in ("Operations", "Bytes", "Failed")]
        t.ok(got == wanted, "%s: the page has %s, strace %s" % (kind, got, wanted))
        got = [row[column][1] for column in ("Operations", "Bytes", "Failed")]
        wanted = ["{:,}".format(wanted[0]), shown(wanted[1]), "{:,}".format(wanted[2])]
        t.ok(got == wanted, "%s: it shows %s, not %s" % (kind, got, wanted))
    read, written = expected.kinds["read"][1], expected.kinds["write"][1]
    count = sum(c[0] for c in expected.kinds.values())
    cards = [page_shows.cards[x] for x in ("Read", "Written", "Operations")]
    t.ok(cards == [shown(read), shown(written), "{:,}".format(count)], "%s" % cards)
    for path, wanted in expected.by_file().items():
        got = [int(files[path][column][0]) for column in COLUMNS]
        t.ok(got == wanted, "%s: the page has %s, strace %s" % (path, got, wanted))
    print("  %d operations in %d files are those of strace: %s" % (
        count, len(files), ", ".join("%s %d" % (kind, c[0]) for kind, c in sorted(expected.kinds.items()))))
    failed = sum(c[2] for c in expected.kinds.values())
    print("  %d bytes read, %d written, %d operations failed" % (read, written, failed))


def same_results(t, outside, inside, logs):
    """Both runs have made the same files. Returns by how many bytes each log is longer in the pool."""
    longer = {}
    names = [sorted(os.path.relpath(os.path.join(at, f), top) for at, _, fs in os.walk(top) for f in fs)
             for top in (outside, inside)]
    t.ok(names[0] == names[1], "other files: %s" % sorted(set(names[0]) ^ set(names[1])))
    for name in names[0]:
        texts = []
        for top in (outside, inside):
            with open(os.path.join(top, name), "rb") as f:
                texts.append(f.read())
        if name in logs:
            longer[name] = len(texts[1]) - len(texts[0])
            texts = [CHANGING.sub("@", text.decode()) for text in texts]
        t.ok(texts[0] == texts[1], "%s isn't the same" % name)
    return longer


# OpenFOAM's tutorial `cavity`: the flow in a box whose lid moves, 400 cells, 10 steps.
CAVITY = {
    "system/controlDict": """application icoFoam; startFrom startTime; startTime 0; stopAt endTime; endTime 0.05;
deltaT 0.005; writeControl timeStep; writeInterval 5; purgeWrite 0; writeFormat ascii; writePrecision 6;
writeCompression off; timeFormat general; timePrecision 6; runTimeModifiable false;""",
    "system/fvSchemes": """ddtSchemes { default Euler; } gradSchemes { default Gauss linear; }
divSchemes { default none; div(phi,U) Gauss linear; } laplacianSchemes { default Gauss linear orthogonal; }
interpolationSchemes { default linear; } snGradSchemes { default orthogonal; }""",
    "system/fvSolution": """solvers { p { solver PCG; preconditioner DIC; tolerance 1e-06; relTol 0.05; }
pFinal { $p; relTol 0; } U { solver smoothSolver; smoother symGaussSeidel; tolerance 1e-05; relTol 0; } }
PISO { nCorrectors 2; nNonOrthogonalCorrectors 0; pRefCell 0; pRefValue 0; }""",
    "system/blockMeshDict": """scale 0.1;
vertices ((0 0 0) (1 0 0) (1 1 0) (0 1 0) (0 0 0.1) (1 0 0.1) (1 1 0.1) (0 1 0.1));
blocks (hex (0 1 2 3 4 5 6 7) (20 20 1) simpleGrading (1 1 1)); edges (); mergePatchPairs ();
boundary (movingWall { type wall; faces ((3 7 6 2)); }
fixedWalls { type wall; faces ((0 4 7 3) (2 6 5 1) (1 5 4 0)); }
frontAndBack { type empty; faces ((0 3 2 1) (4 5 6 7)); });""",
    "constant/transportProperties": "nu 0.01;",
    "0/p": """dimensions [0 2 -2 0 0 0 0]; internalField uniform 0;
boundaryField { movingWall { type zeroGradient; } fixedWalls { type zeroGradient; } frontAndBack { type empty; } }""",
    "0/U": """dimensions [0 1 -1 0 0 0 0]; internalField uniform (0 0 0);
boundaryField { movingWall { type fixedValue; value uniform (1 0 0); } fixedWalls { type noSlip; }
frontAndBack { type empty; } }""",
}
CLASSES = {"0/p": "volScalarField", "0/U": "volVectorField"}


@case(90)
def report_of_openfoam(t):
    for program in ("blockMesh", "icoFoam"):
        if not shutil.which(program):
            raise Skipped("OpenFOAM isn't installed")
    source = os.path.join(t.disk, "cavity")
    for path, text in CAVITY.items():
        os.makedirs(os.path.dirname(os.path.join(source, path)), exist_ok=True)
        with open(os.path.join(source, path), "w") as f:
            f.write("FoamFile { version 2.0; format ascii; class %s; object %s; }\n%s\n" % (
                CLASSES.get(path, "dictionary"), os.path.basename(path), text))
    compared(t, 'blockMesh -case "$1" > "$1/log.blockMesh"; icoFoam -case "$1" > "$1/log.icoFoam"', "cavity", source,
             logs=["log.blockMesh", "log.icoFoam"], env={"WM_PROJECT_DIR": "/usr/share/openfoam"})


EXAMPLES = "/usr/share/doc/bowtie2/examples"
ALIGN = '''bowtie2-build --threads 1 --seed 1 "$1/lambda.fa" "$1/lambda" > "$1/build.log" 2> /dev/null
bowtie2 -p 1 --seed 1 -x "$1/lambda" -U "$1/reads.fq" 2> "$1/align.log" | samtools sort -o "$1/sorted.bam" -
samtools index "$1/sorted.bam"'''


@case(90)
def report_of_bowtie2(t):
    if not shutil.which("bowtie2") or not shutil.which("samtools") or not os.path.isdir(EXAMPLES + "/reads"):
        raise Skipped("bowtie2, its examples or samtools aren't installed")
    source = os.path.join(t.disk, "genome")
    os.mkdir(source)
    with gzip.open(EXAMPLES + "/reference/lambda_virus.fa.gz") as f, open(source + "/lambda.fa", "wb") as to:
        to.write(f.read())
    with gzip.open(EXAMPLES + "/reads/reads_1.fq.gz") as f, open(source + "/reads.fq", "wb") as to:
        to.writelines(line for line, _ in zip(f, range(4 * 2000)))
    compared(t, ALIGN, "genome", source, logs=["build.log", "align.log"])
