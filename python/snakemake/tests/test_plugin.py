"""The plug-in: the suite of Snakemake's interface, and whole workflows."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_storage_plugins.tests import TestStorageBase

import forebay
from snakemake_storage_plugin_forebay import StorageProvider, StorageProviderSettings
from snakemake_storage_plugin_forebay._campaigns import give_back, parsed


class TestForebay(TestStorageBase):
    __test__ = True
    files_only = False
    touch = True

    @pytest.fixture(autouse=True)
    def running(self, pool):
        """An empty pool."""

    def get_query(self, tmp_path):
        return "forebay://tests/some/test.txt"

    def get_query_not_existing(self, tmp_path):
        return "forebay://tests/absent.txt"

    def get_storage_provider_cls(self):
        return StorageProvider

    def get_storage_provider_settings(self):
        return StorageProviderSettings()


@pytest.mark.parametrize("query, valid", [
    ("forebay://tests/a/{sample}.txt", True), ("forebay:///a", True), ("/a/b", True),
    ("forebay://tests", False), ("forebay://tests/", False), ("a/b", True), ("", False),
    ("forebay://tests/../x", False), ("../x", False),
])
def test_queries(query, valid):
    result = StorageProvider.is_valid_query(query)
    assert bool(result) == valid and (valid or result.reason)


WORKFLOW = textwrap.dedent("""
    SAMPLES = ["s%d" % i for i in range(20)]

    rule all:
        input: storage.forebay("forebay://tests/result.txt")

    rule sort:
        input: storage.forebay("forebay://tests/in/{s}.txt")
        output: storage.forebay("forebay://tests/sorted/{s}.txt")
        shell: "sort {input} > {output}"

    rule join:
        input: storage.forebay(expand("forebay://tests/sorted/{s}.txt", s=SAMPLES))
        output: storage.forebay("forebay://tests/result.txt")
        shell: "cat {input} > {output}"
""")


def run_snakemake(place, *options, before=()):
    """Runs Snakemake in a directory, on the tests' pool."""
    environment = {**os.environ, "FOREBAY_POOL": "tests", "XDG_CACHE_HOME": str(place / "cache")}
    return subprocess.run([*before, sys.executable, "-m", "snakemake", "--cores", "2", "--nolock", *options],
                          cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=110)


@pytest.mark.parametrize("inside", [False, True], ids=["copied", "in the pool"])
def test_a_workflow(pool, tmp_path, inside):
    from forebay._command import program

    (tmp_path / "Snakefile").write_text(WORKFLOW)
    pool.mkdir("/in")
    for i in range(20):
        pool.write("/in/s%d.txt" % i, b"b%d\na%d\n" % (i, i))
    before, options = (), ()
    if inside:
        before = (program(), "exec", "--pool", "tests", "--")
        options = ("--local-storage-prefix", "/fb/.snakemake")
    done = run_snakemake(tmp_path, *options, before=before)
    assert done.returncode == 0, done.stdout
    assert pool.read("/result.txt") == b"".join(b"a%d\nb%d\n" % (i, i) for i in range(20))
    assert pool.listdir("/sorted") == sorted("s%d.txt" % i for i in range(20))
    # A second run has nothing to do.
    done = run_snakemake(tmp_path, *options, "--dry-run", before=before)
    assert done.returncode == 0 and "rule sort" not in done.stdout, done.stdout


LISTING = textwrap.dedent("""
    SAMPLES = ["a", "b"]

    rule all:
        input: "results/joined.txt", "note.txt"

    rule bwa_map:
        input: "data/{sample}.txt"
        output: "mapped/{sample}.txt"
        resources: campaign="100TB,10000files,scratch,2d"
        shell: "sort {input} > {output}; echo {wildcards.sample} > {resources.campaign_path}/log.{wildcards.sample}"

    rule join:
        input: expand("mapped/{sample}.txt", sample=SAMPLES)
        output: "results/joined.txt"
        resources: campaign="1TB,slow,1w"
        run:
            with open(output[0], "w") as f:
                f.writelines(open(name).read() for name in input)

    rule note:
        output: "note.txt"
        shell: "echo done > {output}"
""")
OPTIONS = ("--default-storage-provider", "forebay")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Two tiers, and a workflow in a separate directory with its input."""
    tiers = "".join("[tier.%s]\npath = '%s/%s'\n" % (name, tmp_path, name) for name in ("scratch", "slow"))
    (tmp_path / "tiers.toml").write_text("registry = '%s/registry'\n%s" % (tmp_path, tiers))
    monkeypatch.setenv("FOREBAY_CAMPAIGNS", str(tmp_path / "tiers.toml"))
    return tmp_path


def workflow(site, name, text=LISTING):
    place = site / name
    (place / "data").mkdir(parents=True)
    for sample in "ab":
        (place / "data" / (sample + ".txt")).write_text("2%s\n1%s\n" % (sample, sample))
    (place / "Snakefile").write_text(text)
    return place


def campaigns(site):
    return {made["tier"]: made for made in (json.loads(r.read_text()) for r in (site / "registry").glob("*.json"))}


def files(top):
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())


def test_a_resource_is_enough(site):
    place = workflow(site, "case")
    done = run_snakemake(place, *OPTIONS, "--dry-run")
    assert done.returncode == 0 and not campaigns(site), done.stdout
    done = run_snakemake(place, *OPTIONS)
    assert done.returncode == 0, done.stdout
    made = campaigns(site)
    assert sorted(made) == ["scratch", "slow"], made
    scratch, slow = made["scratch"], made["slow"]
    assert (scratch["bytes"], scratch["files"]) == (100 * 10**12, 10000)
    assert scratch["ends"] - scratch["created"] == 2 * 86400 and scratch["name"].startswith("snakemake-case-")
    # The campaigns have the rules' files, and those that commands write to
    # {resources.campaign_path}.
    assert files(type(site)(scratch["place"])) == ["log.a", "log.b", "mapped/a.txt", "mapped/b.txt"]
    assert files(type(site)(slow["place"])) == ["results/joined.txt"]
    assert (type(site)(slow["place"]) / "results/joined.txt").read_text() == "1a\n2a\n1b\n2b\n"
    # Files of rules without a request are in the workflow's directory, and nothing else is left
    # there.
    assert (place / "note.txt").read_text() == "done\n"
    assert not (place / "mapped").exists() and not (place / "results").exists()
    # A second run has nothing to do, and creates nothing.
    done = run_snakemake(place, *OPTIONS)
    assert done.returncode == 0 and "Nothing to be done" in done.stdout, done.stdout
    named = {tier: campaign["name"] for tier, campaign in made.items()}
    assert {tier: campaign["name"] for tier, campaign in campaigns(site).items()} == named
    # A second workflow has its own campaigns. It ends them, and gets its files.
    other = workflow(site, "other")
    done = run_snakemake(other, *OPTIONS, "--storage-forebay-campaign-end", "workflow")
    assert done.returncode == 0, done.stdout
    assert {tier: campaign["name"] for tier, campaign in campaigns(site).items()} == named, done.stdout
    assert sorted(os.listdir(site / "scratch")) == [scratch["name"]]
    assert (other / "results/joined.txt").read_text() == "1a\n2a\n1b\n2b\n" and (other / "mapped/a.txt").exists()
    done = run_snakemake(other, *OPTIONS)
    assert done.returncode == 0 and "Nothing to be done" in done.stdout, done.stdout


def test_campaigns_that_cannot_be(site):
    for text, says in [("1TB,nowhere,1w", "rule bwa_map: the campaign 1TB,nowhere,1w wasn't granted"),
                       ("much", "rule bwa_map: campaign 'much'")]:
        place = workflow(site, text.replace(",", "-"), LISTING.replace("100TB,10000files,scratch,2d", text))
        done = run_snakemake(place, *OPTIONS)
        assert done.returncode != 0 and says in done.stdout, done.stdout
        # No job has run.
        assert not (place / "note.txt").exists(), done.stdout


def test_default_campaigns_end_at_their_time(site):
    plain = LISTING.replace('resources: campaign="1TB,slow,1w"', "").replace(
        'resources: campaign="100TB,10000files,scratch,2d"', "")
    place = workflow(site, "of-setting", plain)
    done = run_snakemake(place, *OPTIONS, "--storage-forebay-campaign", "1TB,scratch,1s")
    assert done.returncode == 0, done.stdout
    # Its time was over when the workflow ended, so it expired, and can be restored during its grace
    # time.
    assert campaigns(site)["scratch"]["state"] == "expired", campaigns(site)
    assert not (place / "note.txt").exists()
    place = workflow(site, "of-resource", plain)
    done = run_snakemake(place, *OPTIONS, "--default-resources", "campaign='1TB,slow,1w'")
    assert done.returncode == 0, done.stdout
    assert "results/joined.txt" in files(type(site)(campaigns(site)["slow"]["place"]))


def test_all_is_given_back_or_nothing_is_deleted(tmp_path, monkeypatch):
    source, target = tmp_path / "campaign", tmp_path / "workflow"
    (source / "results").mkdir(parents=True)
    (source / "results" / "a").write_text("a")
    (source / "latest").symlink_to("results")
    (source / "nowhere").symlink_to("absent")
    target.mkdir()
    give_back(str(source), str(target))
    assert (target / "results" / "a").read_text() == "a"
    assert os.readlink(target / "latest") == "results" and os.readlink(target / "nowhere") == "absent"
    # A directory that can't be listed, not even by root.
    scandir = os.scandir

    def refusing(path="."):
        if os.path.basename(path) == "results":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)
    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(PermissionError):
        give_back(str(source), str(target))


def test_a_wrong_campaign_in_the_settings():
    with pytest.raises(WorkflowError, match="no storage and no lifetime"):
        parsed("1TB")
