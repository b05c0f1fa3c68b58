"""Campaigns: the text that workflows write, and the command that gets it."""

import datetime
import os

import pytest

from forebay import campaign
from forebay.campaign import Campaign

DAY = datetime.timedelta(days=1)


@pytest.mark.parametrize("text, expected", [
    ("100TB,10000files,scratch,2d", Campaign(100 * 10**12, "scratch", 2 * DAY, 10000)),
    ("2d, scratch, 100 TB", Campaign(100 * 10**12, "scratch", 2 * DAY)),
    ("1.5GiB,1file,fast-ssd.2,90m", Campaign(3 << 29, "fast-ssd.2", datetime.timedelta(minutes=90), 1)),
    ("1B,s,1s", Campaign(1, "s", datetime.timedelta(seconds=1))),
    ("0.001kB,x,3w", Campaign(1, "x", 21 * DAY)),
])
def test_what_can_be_read(text, expected):
    assert Campaign.parse(text) == expected
    assert Campaign.parse(str(expected)) == expected


def test_the_canonical_text():
    assert str(Campaign.parse("2d,scratch,10000files,100000GB")) == "100TB,10000files,scratch,2d"
    assert str(Campaign.parse("1KiB,scratch,25h")) == "1024B,scratch,25h"


@pytest.mark.parametrize("text, message", [
    ("100TB,10000files,scratch", "no lifetime"),
    ("", "'' is no size"),
    ("100,scratch,2d", "'100' is no size"),
    ("100TB,2d", "no storage"),
    ("scratch", "no size and no lifetime"),
    ("1TB,2TB,scratch,2d", "'2TB' is a second size"),
    ("1TB,scratch,work,2d", "'work' is a second storage"),
    ("-1TB,scratch,2d", "'-1TB'"),
    ("0TB,scratch,2d", "above 0"),
    ("1TB,0files,scratch,2d", "above 0"),
    ("1TB,scratch,0d", "lifetime"),
    ("1TB,scratch,2y", "'2y' is no size"),
    ("1TB,scratch,99999999999999w", "too long"),
])
def test_what_cannot_be_read(text, message):
    with pytest.raises(ValueError, match=message):
        Campaign.parse(text)


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="int"):
        Campaign.parse(5)


def test_the_command(monkeypatch, tmp_path):
    tiers = tmp_path / "tiers.toml"
    tiers.write_text("registry = '%s/registry'\n[tier.scratch]\npath = '%s/scratch'\n" % (tmp_path, tmp_path))
    monkeypatch.setenv("FOREBAY_CAMPAIGNS", str(tiers))
    asked = Campaign.parse("1TB,scratch,2d")
    place = asked.request("case-1")
    assert place == str(tmp_path / "scratch" / "case-1") and os.path.isdir(place)
    with pytest.raises(OSError, match="there is a campaign 'case-1'"):
        asked.request("case-1")
    with pytest.raises(OSError, match="there is no tier 'tape'"):
        Campaign.parse("1TB,tape,2d").request("case-2")


class Rule:
    def __init__(self, name, **resources):
        self.name, self.resources = name, resources


def test_rules_of_a_workflow():
    text = "1TB,scratch,2d"
    found = campaign.of_rules([Rule("a", campaign=text, mem_mb=5), Rule("b"), Rule("c", campaign="2d,1000GB,scratch")])
    assert found == {Campaign.parse(text): ["a", "c"]}
    with pytest.raises(ValueError, match="rule b: campaign '1TB'"):
        campaign.of_rules([Rule("b", campaign="1TB")])
