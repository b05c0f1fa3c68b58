"""Storage of a workflow's own files: the campaign that their rule requests, else the workflow's
directory.

A rule requests a campaign by its resource `campaign`. There is one campaign for each distinct text
and directory of a workflow. It is created when the first file is looked for, before any job.
Processes of jobs find it by its name. It ends at its time, or, if the user wants it, with the
workflow, after its files are copied back.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

from forebay._command import call
from forebay.campaign import Campaign, of_rules
from forebay.pool import Stat
from snakemake_interface_common.exceptions import WorkflowError

# Maximum length of a directory's name in a campaign's name. Characters.
MAX_NAME = 30
# Shown for the path of a campaign that doesn't exist in a dry run.
NOT_MADE = "(a campaign that a run will make)"
# The values of the setting for the end of campaigns.
AT_ITS_TIME, WITH_THE_WORKFLOW = "time", "workflow"


class Campaigns:
    """The campaigns of a workflow, by rule and by file."""

    def __init__(self, text: str | None, end: str, logger: Any):
        self._text, self._end_at, self._logger = text, end, logger
        self._workflow: Any = None
        self._directory = os.path.realpath(os.getcwd())
        # For each campaign, the path of its data. None: `_ask` hasn't run yet.
        self._paths: dict[Campaign, str] | None = None
        self._by_rule: dict[str, Campaign] = {}
        self._places: dict[str, Directory] = {}

    def belongs_to(self, workflow: Any) -> None:
        """Sets the workflow to which the campaigns belong."""
        if self._workflow is None:
            self._workflow = workflow
            if workflow.is_main_process:
                atexit.register(self._end)

    def place(self, query: str) -> Directory:
        """Returns the directory in which a file of the workflow is stored."""
        if query not in self._places:
            rule = self._producer(query)
            self._ask()
            asked = self._by_rule.get(rule) if rule is not None else None
            path = self._paths.get(asked) if asked is not None else None
            roots = [self._directory] if path is None else [path, self._directory]
            self._places[query] = Directory(roots)
        return self._places[query]

    def _producer(self, query: str) -> str | None:
        """Returns the name of the rule that makes a file."""
        from snakemake.io import regex_from_filepattern

        for rule in self._workflow.rules if self._workflow is not None else ():
            for output in rule.output:
                of = output.storage_object if getattr(output, "is_storage", False) else None
                if of is not None and re.fullmatch(regex_from_filepattern(of.query), query):
                    return rule.name
        return None

    def _ask(self) -> None:
        """Creates the workflow's missing campaigns; in a dry run only finds the existing ones."""
        if self._paths is not None:
            return
        paths: dict[Campaign, str] = {}
        try:
            asked = of_rules(self._workflow.rules)
        except ValueError as e:
            raise WorkflowError(e) from e
        rules = {name: campaign for campaign, names in asked.items() for name in names}
        if self._text is not None:
            usual = parsed(self._text)
            rules = {rule.name: rules.get(rule.name, usual) for rule in self._workflow.rules}
        for rule, campaign in rules.items():
            if campaign in paths:
                continue
            try:
                paths[campaign] = self._path(campaign)
            except OSError as e:
                raise WorkflowError("rule %s: the campaign %s wasn't granted" % (rule, campaign), e) from e
        self._by_rule = rules
        self._paths = {campaign: path for campaign, path in paths.items() if path}
        # For commands that store more than their output files there: {resources.campaign_path}.
        for rule in self._workflow.rules:
            if rule.name in rules:
                rule.resources["campaign_path"] = paths[rules[rule.name]] or NOT_MADE

    def _path(self, campaign: Campaign) -> str:
        name = self.name(campaign)
        if self._workflow.dryrun:
            try:
                return call("campaign", "path", name).strip()
            except OSError:
                return ""
        path = campaign.request(name, if_absent=True)
        if self._workflow.is_main_process:
            self._logger.info("The campaign %s (%s) is at %s." % (name, campaign, path))
        return path

    def name(self, campaign: Campaign) -> str:
        """Returns the campaign's name, which is the same in each process and each run of this workflow."""
        text = "%s\0%s" % (self._directory, campaign)
        slug = re.sub("[^A-Za-z0-9]+", "-", os.path.basename(self._directory)).strip("-")[:MAX_NAME]
        return "snakemake-%s-%s" % (slug or "root", hashlib.sha256(text.encode()).hexdigest()[:10])

    # ---- after the workflow ----

    def _end(self) -> None:
        """Ends the workflow's campaigns, if the user wants it, and all campaigns whose time is over."""
        if not self._paths or self._workflow.dryrun:
            return
        if self._end_at == WITH_THE_WORKFLOW and self._is_done():
            for campaign, path in self._paths.items():
                try:
                    give_back(path, self._directory)
                    call("campaign", "delete", "--now", "--", self.name(campaign))
                except OSError as e:
                    self._logger.error("The campaign %s stays: %s" % (self.name(campaign), e))
        with contextlib.suppress(OSError):
            call("campaignd", "--once")

    def _is_done(self) -> bool:
        dag = self._workflow.dag
        return dag is not None and all(dag.finished(job) for job in dag.needrun_jobs())


def parsed(text: str) -> Campaign:
    try:
        return Campaign.parse(text)
    except ValueError as e:
        raise WorkflowError("--storage-forebay-campaign", e) from e


def give_back(source: str, target: str) -> None:
    """Copies the files of a campaign to the workflow's directory. Each appears when it is complete.

    Fails if any file can't be read: a file that isn't copied must not be deleted.
    """
    def failed(error: OSError) -> None:
        raise error

    for top, dirs, names in os.walk(source, onerror=failed):
        to = os.path.normpath(os.path.join(target, os.path.relpath(top, source)))
        os.makedirs(to, exist_ok=True)
        for name in names + [name for name in dirs if os.path.islink(os.path.join(top, name))]:
            part = os.path.join(to, ".%s.forebay-part-%d" % (name, os.getpid()))
            shutil.copy2(os.path.join(top, name), part, follow_symlinks=False)
            if not os.path.islink(part):
                with contextlib.suppress(OSError):
                    # The campaign's file may be deleted once the copy is on disk.
                    with open(part, "rb") as f:
                        os.fsync(f.fileno())
            os.replace(part, os.path.join(to, name))


def found(of: os.stat_result) -> Stat:
    """Converts attributes of a host's file to a pool's `Stat`."""
    return Stat(ino=of.st_ino, mode=of.st_mode, nlink=of.st_nlink, uid=of.st_uid, gid=of.st_gid, size=of.st_size,
                atime_ns=of.st_atime_ns, mtime_ns=of.st_mtime_ns, ctime_ns=of.st_ctime_ns, birthtime_ns=0)


class Directory:
    """Directories of the host, with those methods of a pool that the plug-in calls.

    Files are searched for in all directories in order, and created in the first one.
    """

    def __init__(self, roots: list[str]):
        self._roots = roots

    @property
    def mount(self) -> str:
        return self._roots[0]

    def made(self, path: str) -> str:
        return self._roots[0] + path

    def at(self, path: str) -> str:
        there = (root + path for root in self._roots if os.path.lexists(root + path))
        return next(there, self.made(path))

    def stat(self, path: str, follow: bool = True) -> Stat:
        return found(os.stat(self.at(path), follow_symlinks=follow))

    def exists(self, path: str) -> bool:
        return os.path.exists(self.at(path))

    def scandir(self, path: str) -> list[tuple[str, Stat]]:
        all_of: dict[str, Stat] = {}
        is_there = False
        for root in self._roots:
            try:
                with os.scandir(root + path) as entries:
                    is_there = True
                    for entry in entries:
                        all_of.setdefault(entry.name, found(entry.stat(follow_symlinks=False)))
            except FileNotFoundError:
                continue
        if not is_there:
            raise FileNotFoundError(path)
        return list(all_of.items())

    def walk(self, path: str) -> Iterator[tuple[str, list[str], list[str]]]:
        dirs, others = [], []
        for name, of in self.scandir(path):
            (dirs if of.is_dir else others).append(name)
        yield path, dirs, others
        for name in dirs:
            yield from self.walk("%s/%s" % (path.rstrip("/"), name))

    def open(self, path: str, mode: str) -> Any:
        return open(self.made(path) if "w" in mode else self.at(path), mode)

    def linked(self, local: Any, path: str) -> bool:
        """Links a local file to `path`, if both are on the same file system."""
        try:
            os.link(local, self.made(path))
        except OSError:
            return False
        return True

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        os.makedirs(self.made(path), exist_ok=exist_ok)

    def rename(self, path: str, to: str) -> None:
        os.replace(self.made(path), self.made(to))

    def unlink(self, path: str) -> None:
        os.unlink(self.at(path))

    def rmtree(self, path: str) -> None:
        shutil.rmtree(self.at(path))

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self.made(path), mode)

    def set_times(self, path: str, atime_ns: int, mtime_ns: int) -> None:
        os.utime(self.at(path), ns=(atime_ns, mtime_ns))
