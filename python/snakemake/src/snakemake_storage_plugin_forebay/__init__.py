"""Snakemake's files in a Forebay pool, and in the campaigns that rules ask for.

A query `forebay://POOL/PATH` is a file of a pool. A relative path is a file of the workflow, stored
in a campaign or in the workflow's directory (_campaigns.py).

A directory is listed once: all its entries get into Snakemake's cache. If the local prefix is in
the pool, a file is passed to a rule and back as a second name (hard link) of the same file;
otherwise it is copied. A stored file gets its name when it is complete.
"""

import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import forebay
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_storage_plugins.io import IOCacheStorageInterface, Mtime, get_constant_prefix
from snakemake_interface_storage_plugins.settings import StorageProviderSettingsBase
from snakemake_interface_storage_plugins.storage_object import (
    StorageObjectGlob,
    StorageObjectRead,
    StorageObjectTouch,
    StorageObjectWrite,
    retry_decorator,
)
from snakemake_interface_storage_plugins.storage_provider import (
    ExampleQuery,
    QueryType,
    StorageProviderBase,
    StorageQueryValidationResult,
)

from ._campaigns import AT_ITS_TIME, WITH_THE_WORKFLOW, Campaigns, Directory, parsed

SCHEME = "forebay://"


@dataclass
class StorageProviderSettings(StorageProviderSettingsBase):
    pool: str | None = field(
        default=None,
        metadata={"help": "The pool of queries that name none. Default: $FOREBAY_POOL, else 'default'."},
    )
    campaign: str | None = field(
        default=None,
        metadata={
            "help": "Storage for the files of all rules that ask for none by their resource 'campaign', as "
            "'100TB,10000files,scratch,2d'."
        },
    )
    campaign_end: str = field(
        default=AT_ITS_TIME,
        metadata={
            "help": "When campaigns end: at their 'time', or with the 'workflow', if it succeeds: then their files "
            "are copied to its directory before.",
            "choices": [AT_ITS_TIME, WITH_THE_WORKFLOW],
        },
    )


class StorageProvider(StorageProviderBase):
    def __post_init__(self):
        self._pools = {}
        text = self.settings.campaign if self.settings is not None else None
        end = self.settings.campaign_end if self.settings is not None else AT_ITS_TIME
        if end not in (AT_ITS_TIME, WITH_THE_WORKFLOW):
            raise WorkflowError("--storage-forebay-campaign-end: '%s' or '%s', not %r"
                                % (AT_ITS_TIME, WITH_THE_WORKFLOW, end))
        if text is not None:
            parsed(text)
        self.campaigns = Campaigns(text, end, self.logger)

    def pool(self, name: str) -> forebay.Pool:
        """Returns the pool, opened by this process."""
        key = (os.getpid(), name)
        if key not in self._pools:
            try:
                self._pools[key] = forebay.Pool(name)
            except OSError as e:
                raise WorkflowError("the pool %r can't be opened" % (name or "default"), e) from e
        return self._pools[key]

    @classmethod
    def example_queries(cls) -> list[ExampleQuery]:
        return [
            ExampleQuery("forebay://default/case/mesh.h5", "a file of the pool 'default'", QueryType.ANY),
            ExampleQuery("forebay:///case/{sample}.txt", "a file of the pool in the settings", QueryType.ANY),
            ExampleQuery("mapped/{sample}.bam", "a file of the workflow, in its rule's campaign", QueryType.ANY),
        ]

    def rate_limiter_key(self, query: str, operation: Any) -> Any:
        return None

    def default_max_requests_per_second(self) -> float:
        return 0.0

    def use_rate_limiter(self) -> bool:
        return False

    @classmethod
    def is_valid_query(cls, query: str) -> StorageQueryValidationResult:
        reason = None
        if query.startswith(SCHEME):
            _, slash, path = query[len(SCHEME):].partition("/")
            if not slash or not path.strip("/"):
                reason = "forebay://POOL/PATH: there is no path"
        elif not query:
            reason = "it is neither forebay://POOL/PATH nor a path"
        if ".." in query.split("/"):
            reason = "'..' leads out of the pool's directory"
        return StorageQueryValidationResult(query, reason is None, reason)

    def postprocess_query(self, query: str) -> str:
        """Returns the normal form of a query: forebay://POOL/path, or a relative path."""
        if query.startswith(SCHEME):
            name, _, path = query[len(SCHEME):].partition("/")
        elif not query.startswith("/"):
            return os.path.normpath(query)
        else:
            name, path = "", query
        own = self.settings.pool if self.settings is not None else None
        name = name or own or os.environ.get("FOREBAY_POOL") or "default"
        return "%s%s/%s" % (SCHEME, name, "/".join(part for part in path.split("/") if part))


class StorageObject(StorageObjectRead, StorageObjectWrite, StorageObjectGlob, StorageObjectTouch):
    def __post_init__(self):
        self.is_of_workflow = not self.query.startswith(SCHEME)
        if self.is_of_workflow:
            self.pool_name, path = "workflow", self.query
        else:
            self.pool_name, _, path = self.query[len(SCHEME):].partition("/")
        self.path = "/" + path

    @property
    def _iofile(self):
        return self.__dict__.get("_iofile")

    @_iofile.setter
    def _iofile(self, iofile):
        # Snakemake sets this for files of rules. Nothing else tells to which workflow the object
        # belongs.
        self.__dict__["_iofile"] = iofile
        rule = getattr(iofile, "rule", None)
        if rule is not None:
            self.provider.campaigns.belongs_to(rule.workflow)

    @property
    def pool(self) -> forebay.Pool | Directory:
        if self.is_of_workflow:
            return self.provider.campaigns.place(self.query)
        return self.provider.pool(self.pool_name)

    def _suffix(self, path: str) -> str:
        return self.pool_name + path

    def local_suffix(self) -> str:
        return self._suffix(self.path)

    def _local_in_pool(self) -> str | None:
        """Returns the local path's path inside this pool; None if it is outside, or this process
        can't see it."""
        if self.is_of_workflow:
            return None
        mount = self.pool.mount.rstrip("/") + "/"
        local = os.path.abspath(self.local_path())
        if not local.startswith(mount):
            return None
        inner = "/" + local[len(mount):]
        # Another file system could be mounted there, for programs that don't see the pool.
        parent = os.path.dirname(local)
        try:
            seen = os.stat(parent).st_ino
            return inner if seen == self.pool.stat(os.path.dirname(inner)).ino else None
        except OSError:
            return None

    # ---- what is there ----

    async def inventory(self, cache: IOCacheStorageInterface):
        parent = self.get_inventory_parent()
        if parent in cache.exists_in_storage:
            return
        directory = os.path.dirname(self.path)
        try:
            found = self.pool.scandir(directory)
        except (FileNotFoundError, NotADirectoryError):
            cache.exists_in_storage[parent] = False
            cache.exists_in_storage[self.cache_key()] = False
            return
        cache.exists_in_storage[parent] = True
        # A file that isn't listed doesn't exist.
        cache.exists_in_storage[self.cache_key()] = False
        for name, of in found:
            key = self.cache_key(self._suffix("%s/%s" % (directory.rstrip("/"), name)))
            if of.is_symlink:
                continue
            cache.exists_in_storage[key] = True
            cache.mtime[key] = Mtime(storage=of.mtime_ns / 1e9)
            cache.size[key] = 0 if of.is_dir else of.size
        if self.pool.exists(self.path):
            cache.exists_in_storage[self.cache_key()] = True

    def get_inventory_parent(self) -> str | None:
        return self.cache_key(self._suffix(os.path.dirname(self.path)))

    def cleanup(self):
        """Does nothing: Snakemake removes the local file, and there is nothing else."""

    def exists(self) -> bool:
        return self.pool.exists(self.path)

    def mtime(self) -> float:
        return self.pool.stat(self.path).mtime_ns / 1e9

    def size(self) -> int:
        of = self.pool.stat(self.path)
        return 0 if of.is_dir else of.size

    def local_footprint(self) -> int:
        if self._local_in_pool():
            return 0
        of = self.pool.stat(self.path)
        if not of.is_dir:
            return of.size
        return sum(of.size for top, _, _ in self.pool.walk(self.path)
                   for _, of in self.pool.scandir(top) if of.is_file)

    def list_candidate_matches(self) -> Iterable[str]:
        prefix = get_constant_prefix(self.path, strip_incomplete_parts=True)
        top = "/" + prefix.strip("/")
        try:
            for directory, _, others in self.pool.walk(top):
                for name in others:
                    path = "%s/%s" % (directory.rstrip("/"), name)
                    yield path[1:] if self.is_of_workflow else "%s%s%s" % (SCHEME, self.pool_name, path)
        except FileNotFoundError:
            return

    # ---- to a rule, and back ----

    @retry_decorator
    def retrieve_object(self):
        inner = self._local_in_pool()
        local = self.local_path()
        if self.pool.stat(self.path).is_dir:
            for top, dirs, others in self.pool.walk(self.path):
                below = top[len(self.path):].lstrip("/")
                (local / below).mkdir(parents=True, exist_ok=True)
                for name in others:
                    target = None if inner is None else os.path.join(inner, below, name)
                    self._fetch("%s/%s" % (top, name), local / below / name, target)
        else:
            self._fetch(self.path, local, inner)

    def _fetch(self, path, local, inner):
        if inner is not None:
            if inner == path:
                return
            if self.pool.exists(inner):
                self.pool.unlink(inner)
            self.pool.link(path, inner)
            return
        with self.pool.open(path, "rb") as source, open(local, "wb") as target:
            shutil.copyfileobj(source, target, 4 << 20)
        of = self.pool.stat(path)
        os.chmod(local, stat.S_IMODE(of.mode))
        os.utime(local, ns=(of.mtime_ns, of.mtime_ns))

    @retry_decorator
    def store_object(self):
        inner = self._local_in_pool()
        local = self.local_path()
        if os.path.isdir(local):
            for top, _, others in os.walk(local):
                below = os.path.relpath(top, local)
                to = self.path if below == "." else "%s/%s" % (self.path, below)
                self.pool.makedirs(to, exist_ok=True)
                for name in others:
                    source = None if inner is None else os.path.normpath(os.path.join(inner, below, name))
                    self._put(os.path.join(top, name), source, "%s/%s" % (to, name))
        else:
            self.pool.makedirs(os.path.dirname(self.path), exist_ok=True)
            self._put(local, inner, self.path)

    def _put(self, local, inner, path):
        """Stores a file so that its name appears when the file is complete."""
        if inner == path:
            return
        part = "%s.forebay-part-%d" % (path, os.getpid())
        if inner is not None:
            self.pool.link(inner, part)
        elif not (self.is_of_workflow and self.pool.linked(local, part)):
            with open(local, "rb") as source, self.pool.open(part, "wb") as target:
                shutil.copyfileobj(source, target, 4 << 20)
            of = os.stat(local)
            self.pool.chmod(part, stat.S_IMODE(of.st_mode))
        self.pool.rename(part, path)
        if inner is not None and self.pool.exists(part):
            # rename(2) does nothing if both names are of one file.
            self.pool.unlink(part)

    @retry_decorator
    def remove(self):
        if self.pool.stat(self.path, follow=False).is_dir:
            self.pool.rmtree(self.path)
        else:
            self.pool.unlink(self.path)

    @retry_decorator
    def touch(self):
        import time

        now = time.time_ns()
        self.pool.set_times(self.path, now, now)
