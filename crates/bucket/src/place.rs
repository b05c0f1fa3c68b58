//! A bucket as a [`Place`]: prefixes are directories, objects are files.
//!
//! Paths begin with a slash; the rest is the key. A directory has its attributes in an object whose
//! key ends in a slash (a *marker*), if it has one; without, it is there as long as there are keys
//! below it.
//!
//! Listing a directory also asks for the attributes of all that is in it, with [`ASKERS`] threads:
//! a list has no attributes but sizes. They are kept until the file is opened. Of directories that
//! are written to, the names are kept, so that a file that isn't there costs no request.

use crate::address::Address;
use crate::attributes::{Head, without_marker};
use crate::calls::Replaces;
use crate::client::{Client, Limits, lock};
use crate::fault::{Fault, GARBAGE};
use crate::file::BucketFile;
use crate::secret::Settings;
use forebay_staging::{Meta, Objects, Place, for_each};
use rustix::io::{Errno, Result};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Threads that ask for attributes.
pub(crate) const ASKERS: usize = 16;
/// Longest key. Bytes.
const LONGEST_KEY: usize = 1024;
/// Longest target of a symbolic link. Bytes.
pub(crate) const LONGEST_TARGET: u64 = 4096;

/// Threads that copy, where the user names no number: more than cores, as they wait for the network.
pub const THREADS: usize = 16;

/// Names in a directory.
type Names = Vec<Vec<u8>>;

/// A bucket.
pub struct BucketPlace {
    pub(crate) client: Client,
    /// The prefix of all that is written.
    pub(crate) below: String,
    /// Attributes that a list has brought, by path; None: there is nothing.
    known: Mutex<HashMap<Vec<u8>, Option<Head>>>,
    /// The names in directories that are written to.
    names: Mutex<HashMap<Vec<u8>, HashSet<Vec<u8>>>>,
    /// Uploads of earlier runs, by key.
    pub(crate) leftovers: OnceLock<Mutex<HashMap<String, Vec<String>>>>,
    /// Whether the server knows conditions on writes.
    pub(crate) has_conditions: std::sync::atomic::AtomicBool,
}

/// The errno of a fault.
pub(crate) fn errno(fault: Fault) -> Errno {
    fault.errno
}

/// A path's key.
pub(crate) fn key(path: &[u8]) -> Result<&str> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    match std::str::from_utf8(path) {
        Ok(key) if key.len() <= LONGEST_KEY => Ok(key),
        Ok(_) => Err(Errno::NAMETOOLONG),
        Err(_) => Err(Errno::ILSEQ),
    }
}

/// The prefix of all keys in a directory: empty, or with a slash at its end.
pub(crate) fn prefix(path: &[u8]) -> Result<String> {
    let key = key(path)?;
    Ok(match key.is_empty() {
        true => String::new(),
        false => format!("{key}/"),
    })
}

/// Directory and last name of a path.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(0) => (b"/", &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"/", path),
    }
}

pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"/" => [b"/", name].concat(),
        directory => [directory, b"/", name].concat(),
    }
}

impl BucketPlace {
    /// The bucket of an address, with this user's settings. Nothing is asked yet.
    ///
    /// # Errors
    /// A message: credentials or other settings are missing or wrong.
    pub fn open(address: &Address) -> std::result::Result<BucketPlace, String> {
        let client = Client::new(&address.bucket, &Settings::read()?, Limits::default())?;
        let below = String::from_utf8_lossy(&address.path[1..]).into_owned();
        Ok(BucketPlace::new(client, below))
    }

    pub(crate) fn new(client: Client, below: String) -> BucketPlace {
        BucketPlace {
            client,
            below,
            known: Mutex::default(),
            names: Mutex::default(),
            leftovers: OnceLock::new(),
            has_conditions: true.into(),
        }
    }

    /// Asks the server for the object or the directory at a path.
    fn look(&self, path: &[u8]) -> std::result::Result<Option<Head>, Fault> {
        let of = |e| Fault::new(e, "");
        let (key, prefix) = (key(path).map_err(of)?, prefix(path).map_err(of)?);
        if key.is_empty() {
            // There always is; but the bucket may not be, or may be closed to this user.
            self.client.has_any("")?;
            return Ok(Some(without_marker()));
        }
        match self.client.head(key)? {
            Some(head) => Ok(Some(head)),
            None => self.look_for_directory(&prefix),
        }
    }

    fn look_for_directory(&self, prefix: &str) -> std::result::Result<Option<Head>, Fault> {
        if let Some(head) = self.client.head(prefix)? {
            return Ok(Some(head));
        }
        Ok(self.client.has_any(prefix)?.then(without_marker))
    }

    /// The names that a directory had when it was first asked for.
    fn has_name(&self, path: &[u8]) -> Option<bool> {
        let (directory, name) = split(path);
        Some(lock(&self.names).get(directory)?.contains(name))
    }

    /// The object or the directory at a path. None: nothing is there.
    pub(crate) fn find(&self, path: &[u8]) -> Result<Option<Head>> {
        let known = lock(&self.known).get(path).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        if self.has_name(path) == Some(false) {
            return Ok(None);
        }
        let found = self.look(path).map_err(errno)?;
        self.learn(path, found.clone());
        Ok(found)
    }

    /// Notes what there is at a path.
    pub(crate) fn learn(&self, path: &[u8], head: Option<Head>) {
        lock(&self.known).insert(path.to_vec(), head);
    }

    /// Forgets what was known of a path.
    pub(crate) fn forget(&self, path: &[u8]) {
        lock(&self.known).remove(path);
    }

    /// The version that a write to a path may replace: the one that was seen there.
    pub(crate) fn replaces(&self, path: &[u8]) -> Replaces {
        if !self.has_conditions() {
            return Replaces::Anything;
        }
        match lock(&self.known).get(path) {
            Some(Some(head)) if head.etag.is_empty() || head.meta.is_dir() => Replaces::Anything,
            Some(Some(head)) => Replaces::Version(head.etag.clone()),
            Some(None) => Replaces::Nothing,
            None if self.has_name(path) == Some(false) => Replaces::Nothing,
            None => Replaces::Anything,
        }
    }

    /// Whether the server knows conditions on writes, as far as is known.
    pub(crate) fn has_conditions(&self) -> bool {
        self.has_conditions
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The target of a symbolic link: the object's content, as s3fs has it.
    pub(crate) fn target(&self, path: &[u8], head: Head) -> Result<Vec<u8>> {
        if !head.meta.is_symlink() {
            return Err(Errno::INVAL);
        }
        let size = head.meta.size;
        if !(1..=LONGEST_TARGET).contains(&size) {
            return Err(GARBAGE);
        }
        let mut target = vec![0; size as usize];
        let file = BucketFile::new(&self.client, key(path)?, head);
        let mut have = 0;
        while have < target.len() {
            match forebay_staging::PlaceFile::read_at(&file, &mut target[have..], have as u64)? {
                0 => return Err(GARBAGE),
                n => have += n,
            }
        }
        match target.contains(&0) {
            true => Err(GARBAGE),
            false => Ok(target),
        }
    }

    /// Names in a directory: those of directories, and those of objects.
    fn entries(&self, path: &[u8]) -> Result<(Names, Names)> {
        let prefix = prefix(path)?;
        let listed = self.client.list(&prefix).map_err(errno)?;
        let name = |key: &String| key.as_bytes()[prefix.len()..].to_vec();
        let directory = |key: &String| {
            let mut name = name(key);
            name.pop();
            name
        };
        let directories = listed.prefixes.iter().map(directory).collect();
        // The directory's own marker is there, too.
        let objects = listed
            .objects
            .iter()
            .filter(|object| object.key != prefix)
            .map(|object| name(&object.key))
            .collect();
        Ok((directories, objects))
    }
}

impl Place for BucketPlace {
    type File<'a> = BucketFile<'a>;

    fn stat(&self, path: &[u8], _follow: bool) -> Result<Meta> {
        match self.find(path)? {
            Some(head) => Ok(head.meta),
            None => Err(Errno::NOENT),
        }
    }

    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (directories, objects) = self.entries(path)?;
        let seen: HashSet<&Vec<u8>> = directories.iter().collect();
        // An object with the name of a directory can't be a file beside it. A name that is
        // none makes the copier report it.
        let (both, objects): (Vec<_>, Vec<_>) = objects.into_iter().partition(|n| seen.contains(n));
        let all: Vec<(Vec<u8>, bool)> = directories
            .iter()
            .map(|name| (name.clone(), true))
            .chain(objects.iter().map(|name| (name.clone(), false)))
            .filter(|(name, _)| !name.is_empty())
            .collect();
        let failed = Mutex::new(None);
        for_each(ASKERS, &all, |(name, is_dir)| {
            if lock(&failed).is_some() {
                return;
            }
            let path = join(path, name);
            let found = match (key(&path), is_dir) {
                (Ok(key), true) => self.client.head(&format!("{key}/")),
                (Ok(key), false) => self.client.head(key),
                (Err(e), _) => Err(Fault::new(e, "")),
            };
            match found {
                // The name was there a moment ago.
                Ok(found) => self.learn(&path, found.or_else(|| is_dir.then(without_marker))),
                Err(fault) => *lock(&failed) = Some(fault.errno),
            }
        });
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(e) = failed {
            return Err(e);
        }
        let is_there = |name: &Vec<u8>| {
            name.is_empty()
                || lock(&self.known)
                    .get(&join(path, name))
                    .is_none_or(Option::is_some)
        };
        let mut names: Vec<Vec<u8>> = directories.iter().chain(&objects).cloned().collect();
        names.retain(is_there);
        names.extend(both.into_iter().map(|name| [&name[..], b"/"].concat()));
        Ok(names)
    }

    fn open(&self, path: &[u8], _follow: bool) -> Result<BucketFile<'_>> {
        let head = self.find(path)?.ok_or(Errno::NOENT)?;
        // Of a file that may be replaced, the version is still needed.
        if self.has_name(path).is_none() {
            self.forget(path);
        }
        match head.meta.kind() {
            libc::S_IFREG => Ok(BucketFile::new(&self.client, key(path)?, head)),
            libc::S_IFDIR => Err(Errno::ISDIR),
            _ => Err(Errno::LOOP),
        }
    }

    fn create(&self, _: &[u8], _: &[u8]) -> Result<BucketFile<'_>> {
        Err(Errno::OPNOTSUPP)
    }

    /// Makes nothing: the directory appears with what is put into it, or with its attributes.
    fn mkdir(&self, path: &[u8], _mode: u32) -> Result<()> {
        match self.find(path)? {
            Some(head) if !head.meta.is_dir() => return Err(Errno::EXIST),
            _ if lock(&self.names).contains_key(path) => return Ok(()),
            _ => {}
        }
        let mut names = HashSet::new();
        if self.has_name(path) != Some(false) {
            let (directories, objects) = self.entries(path)?;
            names.extend(directories.into_iter().chain(objects));
        }
        lock(&self.names).insert(path.to_vec(), names);
        Ok(())
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.forget(path);
        self.client.delete(key(path)?).map_err(errno)
    }

    /// Removes the directory's marker.
    fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.forget(path);
        let prefix = prefix(path)?;
        let (directories, objects) = self.entries(path)?;
        if !directories.is_empty() || !objects.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.client.delete(&prefix).map_err(errno)
    }

    fn rename(&self, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn link(&self, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn symlink(&self, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        let head = self.find(path)?.ok_or(Errno::NOENT)?;
        self.target(path, head)
    }

    fn chmod(&self, _: &[u8], _: u32) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn chown(&self, _: &[u8], _: Option<u32>, _: Option<u32>) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn set_times(&self, _: &[u8], _: i64, _: i64) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn xattrs(&self, _: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn xattr(&self, _: &[u8], _: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::NODATA)
    }

    fn set_xattr(&self, _: &[u8], _: &[u8], _: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn remove_xattr(&self, _: &[u8], _: &[u8]) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    /// Nothing to do: confirmed bytes are on the server's stable storage.
    fn sync_all(&self, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn objects(&self) -> Option<&dyn Objects> {
        Some(self)
    }

    fn show(&self, path: &[u8]) -> String {
        let key = String::from_utf8_lossy(path.strip_prefix(b"/").unwrap_or(path));
        format!("s3://{}/{key}", self.client.bucket)
    }

    fn explain(&self, error: Errno) -> String {
        self.client.explain(error)
    }
}
