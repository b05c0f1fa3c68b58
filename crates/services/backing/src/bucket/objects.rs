//! Paths in a bucket: prefixes are directories, objects are files.
//!
//! A directory's attributes are those of its *marker*, an object whose key ends in a slash. A
//! directory without a marker exists while there are keys below it.
//!
//! During a staging, listing a directory also requests the attributes of all its entries, with
//! [`ASKERS`] threads, since a list has only sizes. The attributes are remembered until the file is
//! opened. Names in directories that are written to are remembered, so that looking up a missing
//! file costs no request. Behind a pool, nothing is remembered between calls.

use crate::bucket::address::Address;
use crate::bucket::attributes::{DEVICE, Head, version, without_marker};
use crate::bucket::calls::{Object, Replaces};
use crate::bucket::client::{Client, Limits};
use crate::bucket::fault::{CHANGED, Fault, GARBAGE};
use crate::bucket::file::BucketFile;
use crate::bucket::secret::Settings;
use crate::error::Error;
use crate::meta::Meta;
use crate::parallel::try_map;
use crate::store::{Entries, Replaced, StoreFile, join};
use forebay_runtime::threads::lock;
use rustix::io::{Errno, Result};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Number of threads that request attributes.
const ASKERS: usize = 16;
/// Maximum length of a key. Bytes.
const MAX_KEY_BYTES: usize = 1024;
/// Maximum length of a symbolic link's target. Bytes.
const MAX_LINK_TARGET_BYTES: u64 = 4096;
/// If a listed directory has more new entries than this, attributes are requested only of objects
/// that are small enough to be symbolic links.
const MAX_ENTRIES_WITH_ATTRIBUTES: usize = 1000;

/// Default number of threads that copy. The number exceeds that of cores, since the threads wait
/// for the network.
pub const THREADS: usize = 16;

/// A bucket, or the objects below a prefix of it.
pub struct BucketStore {
    pub(crate) client: Client,
    /// The directory in the bucket to which callers' paths are relative.
    root: Vec<u8>,
    /// A prefix that all keys written by this store have.
    pub(crate) below: String,
    /// The objects seen so far. None: this isn't a staging.
    pub(crate) seen: Option<Seen>,
    /// Directories that are known to have a marker.
    pub(crate) marked: Mutex<HashSet<Vec<u8>>>,
    /// Uploads of earlier runs, by key.
    pub(crate) leftovers: OnceLock<Mutex<HashMap<String, Vec<String>>>>,
    /// Whether the server supports conditions on writes, as far as is known.
    pub(crate) has_conditions: AtomicBool,
    /// Whether the server has conditional deletes. Unset: not yet asked.
    pub(crate) deletes_conditionally: OnceLock<bool>,
}

/// A staging's memory of a bucket.
#[derive(Default)]
pub struct Seen {
    /// Attributes from listings and look-ups, by path. None: no such object.
    known: Mutex<HashMap<Vec<u8>, Option<Head>>>,
    /// The names in directories that are written to, from before the first write.
    pub(crate) names: Mutex<HashMap<Vec<u8>, HashSet<Vec<u8>>>>,
}

impl Seen {
    /// Whether the directory of `path` had the name of `path` when the directory was first listed.
    /// None: the directory wasn't listed.
    fn has_name(&self, path: &[u8]) -> Option<bool> {
        let (directory, name) = split(path);
        Some(lock(&self.names).get(directory)?.contains(name))
    }
}

/// Returns the errno of a fault.
pub(crate) fn errno(fault: Fault) -> Errno {
    fault.errno
}

/// Splits a path in the bucket into directory and last name.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(0) => (b"/", &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"/", path),
    }
}

/// Returns the key of a path in the bucket.
pub(crate) fn key(path: &[u8]) -> Result<&str> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    match std::str::from_utf8(path) {
        Ok(key) if key.len() <= MAX_KEY_BYTES => Ok(key),
        Ok(_) => Err(Errno::NAMETOOLONG),
        Err(_) => Err(Errno::ILSEQ),
    }
}

/// Returns the prefix of all keys in a directory: empty, or ending in a slash.
pub(crate) fn prefix(path: &[u8]) -> Result<String> {
    let key = key(path)?;
    Ok(if key.is_empty() {
        String::new()
    } else {
        format!("{key}/")
    })
}

/// Whether a part of a key can be the name of a file.
fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

/// Returns the metadata of an object as far as a list has it.
fn listed_meta(object: &Object) -> Meta {
    Meta {
        dev: DEVICE,
        ino: version(&object.etag),
        mode: libc::S_IFREG | 0o644,
        size: object.size,
        atime: object.modified,
        mtime: object.modified,
        ctime: object.modified,
        ..without_marker().meta
    }
}

impl BucketStore {
    /// Returns the bucket of an address for a staging, with this user's settings. Paths begin with
    /// a slash and are relative to the bucket. Objects that were seen are remembered. Sends no
    /// request yet.
    ///
    /// # Errors
    /// A message: credentials or other settings are missing or wrong.
    pub fn for_staging(address: &Address) -> std::result::Result<BucketStore, Error> {
        BucketStore::open(
            address,
            Limits::default(),
            Vec::new(),
            Some(Seen::default()),
        )
    }

    /// Returns the store of the objects below an address, with this user's settings. Paths are
    /// relative to the address. Nothing is remembered. A request to a server that doesn't answer
    /// ends after about `timeout`. Sends no request yet.
    ///
    /// # Errors
    /// The errors of [`BucketStore::for_staging`].
    pub fn inside(address: &Address, timeout: Duration) -> std::result::Result<BucketStore, Error> {
        let mut root = address.path.clone();
        if root.last() != Some(&b'/') {
            root.push(b'/');
        }
        BucketStore::open(address, Limits::of(timeout), root, None)
    }

    fn open(
        address: &Address,
        limits: Limits,
        root: Vec<u8>,
        seen: Option<Seen>,
    ) -> std::result::Result<BucketStore, Error> {
        let client = Client::new(&address.bucket, &Settings::read()?, limits)?;
        Ok(BucketStore {
            root,
            below: String::from_utf8_lossy(&address.path[1..]).into_owned(),
            seen,
            ..BucketStore::with_client(client)
        })
    }

    /// Returns the store of a whole bucket. Nothing is remembered.
    pub(crate) fn with_client(client: Client) -> BucketStore {
        BucketStore {
            client,
            root: vec![b'/'],
            below: String::new(),
            seen: None,
            marked: Mutex::default(),
            leftovers: OnceLock::new(),
            has_conditions: true.into(),
            deletes_conditionally: OnceLock::new(),
        }
    }

    /// Returns the path in the bucket of a caller's path.
    pub(crate) fn full(&self, path: &[u8]) -> Vec<u8> {
        let mut full = self.shown(path);
        if path.is_empty() && full.len() > 1 {
            full.pop();
        }
        full
    }

    /// Returns the path in the bucket of a caller's path; the root's path ends in a slash.
    pub(crate) fn shown(&self, path: &[u8]) -> Vec<u8> {
        [&self.root[..], path].concat()
    }

    /// Returns the object or directory at a path in the bucket, as it is remembered or else from
    /// the server. None: neither exists.
    ///
    /// # Errors
    /// The server's errors, as errnos for [`Client::explain`].
    pub(crate) fn find(&self, path: &[u8]) -> Result<Option<Head>> {
        let Some(seen) = &self.seen else {
            return self.head(path);
        };
        let known = lock(&seen.known).get(path).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        if seen.has_name(path) == Some(false) {
            return Ok(None);
        }
        let found = self.head(path)?;
        lock(&seen.known).insert(path.to_vec(), found.clone());
        Ok(found)
    }

    /// Returns the object or directory as [`BucketStore::find`] does, always from the server.
    pub(crate) fn head(&self, path: &[u8]) -> Result<Option<Head>> {
        let key = key(path)?;
        if !key.is_empty()
            && let Some(head) = self.client.head(key).map_err(errno)?
        {
            return Ok(Some(head));
        }
        let prefix = prefix(path)?;
        // If listing works, the bucket itself exists.
        if !self.client.has_any(&prefix).map_err(errno)? && !prefix.is_empty() {
            return Ok(None);
        }
        self.directory(&prefix).map(Some)
    }

    /// Returns a directory with the attributes of its marker.
    pub(crate) fn directory(&self, prefix: &str) -> Result<Head> {
        let marker = if prefix.is_empty() {
            None
        } else {
            self.client.head(prefix).map_err(errno)?
        };
        Ok(marker.unwrap_or_else(without_marker))
    }

    /// Forgets the remembered attributes of a path.
    pub(crate) fn forget(&self, path: &[u8]) {
        if let Some(seen) = &self.seen {
            lock(&seen.known).remove(path);
        }
    }

    /// Remembers the names that a directory has now, because it will be written to.
    pub(crate) fn expect_writes(&self, seen: &Seen, path: &[u8]) -> Result<()> {
        match self.find(path)? {
            Some(head) if !head.meta.is_dir() => return Err(Errno::EXIST),
            _ if lock(&seen.names).contains_key(path) => return Ok(()),
            _ => {}
        }
        let names = if seen.has_name(path) == Some(false) {
            HashSet::new()
        } else {
            let listed = self.listed(path)?.all;
            listed.into_iter().map(|(name, _)| name).collect()
        };
        lock(&seen.names).insert(path.to_vec(), names);
        Ok(())
    }

    /// Returns the entries of a directory with the metadata that a list has: versions and sizes.
    pub(crate) fn listed(&self, path: &[u8]) -> Result<Entries> {
        let prefix = prefix(path)?;
        let listed = self.client.list(&prefix).map_err(errno)?;
        let mut entries = Entries::default();
        let mut known = HashSet::new();
        for below in &listed.prefixes {
            let name = below[prefix.len()..].trim_end_matches('/');
            if is_name(name) && below.len() == prefix.len() + name.len() + 1 {
                known.insert(name);
                entries.all.push((name.into(), without_marker().meta));
            } else {
                entries.odd.push(below.clone())
            }
        }
        for object in &listed.objects {
            let name = &object.key[prefix.len()..];
            if is_name(name) && !known.contains(name) {
                entries.all.push((name.into(), listed_meta(object)));
            } else if !name.is_empty() {
                // An empty name is the directory's own marker.
                entries.odd.push(object.key.clone());
            }
        }
        Ok(entries)
    }

    /// Requests all attributes of the entries with the indices `wanted`. Returns the attributes by
    /// index; None: the entry was removed since it was listed. Calls `asked` after each request.
    fn heads(
        &self,
        path: &[u8],
        entries: &Entries,
        wanted: &[usize],
        asked: &(dyn Fn(&[u8]) + Sync),
    ) -> Result<Vec<(usize, Option<Head>)>> {
        try_map(ASKERS, wanted, |&at| {
            let (name, meta) = &entries.all[at];
            let full = join(path, name);
            let head = if meta.is_dir() {
                prefix(&full).and_then(|prefix| self.directory(&prefix).map(Some))
            } else {
                key(&full).and_then(|key| self.client.head(key).map_err(errno))
            };
            asked(name);
            Ok((at, head?))
        })
    }

    /// Requests all attributes of those entries for which `is_new` is true.
    pub(crate) fn complete(
        &self,
        path: &[u8],
        entries: &mut Entries,
        is_new: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Result<()> {
        let new: Vec<usize> = (0..entries.all.len())
            .filter(|&at| is_new(&entries.all[at].0))
            .collect();
        let may_wait = |meta: &Meta| {
            new.len() > MAX_ENTRIES_WITH_ATTRIBUTES && meta.size > MAX_LINK_TARGET_BYTES
        };
        let asked: Vec<usize> = (new.iter().copied())
            .filter(|&at| !may_wait(&entries.all[at].1))
            .collect();
        // Calling `is_new` again gives a sign of life to the process that waits for the listing.
        let mut found = self.heads(path, entries, &asked, &|name| _ = is_new(name))?;
        found.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (at, head) in found {
            match head {
                Some(head) => entries.all[at].1 = head.meta,
                None => drop(entries.all.swap_remove(at)),
            }
        }
        Ok(())
    }

    /// Lists the names in a directory, and remembers their attributes. The result includes names
    /// that no file can have, so that the copier reports them.
    pub(crate) fn learn_names(&self, seen: &Seen, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let entries = self.listed(path)?;
        let all: Vec<usize> = (0..entries.all.len()).collect();
        let mut found = self.heads(path, &entries, &all, &|_| ())?;
        found.sort_unstable_by_key(|(at, _)| *at);
        let mut names = Vec::new();
        for (at, head) in found {
            let name = &entries.all[at].0;
            if head.is_some() {
                names.push(name.clone());
            }
            lock(&seen.known).insert(join(path, name), head);
        }
        let prefix = prefix(path)?;
        for odd in &entries.odd {
            let name = &odd[prefix.len()..];
            names.push(match name.strip_suffix('/') {
                Some(bare) => bare.into(),
                // A directory has the same name, so the object can't be a file. With a slash, its
                // name is invalid, and the copier reports it.
                None if is_name(name) => format!("{name}/").into(),
                None => name.into(),
            });
        }
        Ok(names)
    }

    /// Opens the current version of an object.
    ///
    /// # Errors
    /// ENOENT; EISDIR; ELOOP: the object is a symbolic link. Others as for [`BucketStore::find`].
    pub(crate) fn open_object(&self, path: &[u8]) -> Result<BucketFile<'_>> {
        let head = self.find(path)?.ok_or(Errno::NOENT)?;
        // If the file may be replaced, its version is still needed, so it isn't forgotten.
        if (self.seen.as_ref()).is_some_and(|seen| seen.has_name(path).is_none()) {
            self.forget(path);
        }
        match head.meta.kind() {
            libc::S_IFREG => Ok(BucketFile::new(&self.client, key(path)?, head)),
            libc::S_IFDIR => Err(Errno::ISDIR),
            _ => Err(Errno::LOOP),
        }
    }

    /// Returns the target of a symbolic link, which is the object's content, as in s3fs.
    pub(crate) fn target(&self, path: &[u8]) -> Result<Vec<u8>> {
        let head = self.find(path)?.ok_or(Errno::NOENT)?;
        if !head.meta.is_symlink() {
            return Err(Errno::INVAL);
        }
        let size = head.meta.size;
        if !(1..=MAX_LINK_TARGET_BYTES).contains(&size) {
            return Err(GARBAGE);
        }
        let mut target = vec![0; size as usize];
        let file = BucketFile::new(&self.client, key(path)?, head);
        let mut have = 0;
        while have < target.len() {
            match file.read_at(&mut target[have..], have as u64)? {
                0 => return Err(GARBAGE),
                n => have += n,
            }
        }
        if target.contains(&0) {
            Err(GARBAGE)
        } else {
            Ok(target)
        }
    }

    /// Returns the condition of a write that may replace `replaced`. If the server supports no
    /// conditions, compares the version now.
    pub(crate) fn condition(&self, path: &[u8], replaced: Replaced) -> Result<Replaces> {
        let has_conditions = self.has_conditions.load(Relaxed);
        let there = || self.client.head(key(path)?).map_err(errno);
        match (replaced, &self.seen) {
            (Replaced::Seen, Some(seen)) if has_conditions => {
                Ok(match lock(&seen.known).get(path) {
                    Some(Some(head)) if head.etag.is_empty() || head.meta.is_dir() => {
                        Replaces::Anything
                    }
                    Some(Some(head)) => Replaces::Version(head.etag.clone()),
                    Some(None) => Replaces::Nothing,
                    None if seen.has_name(path) == Some(false) => Replaces::Nothing,
                    None => Replaces::Anything,
                })
            }
            (Replaced::Seen, _) => Ok(Replaces::Anything),
            (Replaced::Nothing, _) if has_conditions => Ok(Replaces::Nothing),
            (Replaced::Nothing, _) => match there()? {
                Some(_) => Err(CHANGED),
                None => Ok(Replaces::Anything),
            },
            (Replaced::Version(meta), _) => match there()? {
                Some(head) if version(&head.etag) != meta.ino => Err(CHANGED),
                Some(head) if has_conditions => Ok(Replaces::Version(head.etag)),
                Some(_) => Ok(Replaces::Anything),
                None => Err(CHANGED),
            },
        }
    }
}
