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


class TestForebay(TestStorageBase):
    __test__ = True
    files_only = False
    touch = True

    @pytest.fixture(autouse=True)
    def running(self, pool):
        """With an empty pool."""

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
    ("forebay://tests", False), ("forebay://tests/", False), ("a/b", False), ("forebay://tests/../x", False),
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
    """Runs Snakemake in a directory, on the pool of the tests."""
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
    # Again: nothing is to be done.
    done = run_snakemake(tmp_path, *options, "--dry-run", before=before)
    assert done.returncode == 0 and "rule sort" not in done.stdout, done.stdout


CAMPAIGN = textwrap.dedent("""
    from forebay import campaign

    onstart:
        for asked, rules in campaign.of_rules(workflow.rules).items():
            print("asked:", asked, "by", *rules)

    rule all:
        input: storage.forebay("forebay://tests/result.txt")

    rule bwa_map:
        resources: campaign="100TB,10000files,scratch,2d"
        output: storage.forebay("forebay://tests/result.txt")
        shell: "echo {resources.campaign} > {output}"
""")


def test_campaigns(pool, tmp_path, monkeypatch):
    (tmp_path / "Snakefile").write_text(CAMPAIGN)
    (tmp_path / "tiers.toml").write_text("registry = '%s/registry'\n[tier.scratch]\npath = '%s/scratch'\n"
                                         % (tmp_path, tmp_path))
    monkeypatch.setenv("FOREBAY_CAMPAIGNS", str(tmp_path / "tiers.toml"))
    done = run_snakemake(tmp_path, "--storage-forebay-campaign", "2TB,nowhere,1w")
    assert done.returncode != 0 and "there is no tier 'nowhere'" in done.stdout, done.stdout
    done = run_snakemake(tmp_path, "--storage-forebay-campaign", "1TB,scratch,1w")
    assert done.returncode == 0, done.stdout
    assert "asked: 100TB,10000files,scratch,2d by bwa_map" in done.stdout
    [made] = [json.loads(record.read_text()) for record in (tmp_path / "registry").glob("*.json")]
    assert made["name"].startswith("snakemake-") and made["tier"] == "scratch" and made["bytes"] == 10**12
    assert os.path.isdir(made["place"])
    assert pool.read("/result.txt") == b"100TB,10000files,scratch,2d\n"


def test_a_wrong_campaign_in_the_settings():
    with pytest.raises(WorkflowError, match="no storage and no lifetime"):
        StorageProvider._request(None, "1TB")
