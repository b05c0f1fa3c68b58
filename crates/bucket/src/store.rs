//! A bucket as the store behind a pool: nothing is remembered between calls, and each write names
//! the version that it may replace.
//!
//! A version is a number made from the object's ETag ([`Meta::ino`]), beside [`DEVICE`] as
//! [`Meta::dev`]. Directories have no versions. Paths are those of [`BucketPlace`].
//!
//! Guarantees: an object replaces only the version that the caller names, on servers that know
//! conditions on writes; on others, the version is compared just before. A rename is a copy by the
//! server and a removal: after a death in between, both names exist.

use crate::address::Address;
use crate::attributes::{self, DEVICE, Head, UserAttributes, kept, user_headers, version};
use crate::calls::{Object, Part, Replaces, Upload};
use crate::client::{Client, Limits, lock};
use crate::fault::{CHANGED, Fault};
use crate::file::BucketFile;
use crate::place::{ASKERS, BucketPlace, LONGEST_TARGET, errno, join, key, prefix, split};
use crate::put::{LARGEST_COPY, PART, part_size};
use crate::secret::Settings;
use crate::sign::hex;
use forebay_staging::{Meta, Place, Source, Trouble, for_each};
use md5::{Digest, Md5};
use rustix::io::{Errno, Result};
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// In a directory with more new entries than this, objects too large for symbolic links are listed
/// without asking for their attributes.
const ASKED: usize = 1000;

/// Parts of an object that are copied at the same time.
const COPIERS: usize = 8;

/// The entries of a directory.
#[derive(Debug, Default)]
pub struct Entries {
    /// Names, and metadata as far as they are known.
    pub all: Vec<(Vec<u8>, Meta)>,
    /// Keys that can't be files of this directory.
    pub odd: Vec<String>,
}

/// A bucket behind a pool.
pub struct BucketStore {
    place: BucketPlace,
    /// Directories that have a marker.
    marked: Mutex<HashSet<Vec<u8>>>,
}

impl BucketStore {
    /// The bucket of an address, with this user's settings. A request to a server that doesn't
    /// answer ends after about `timeout`. Nothing is asked yet.
    ///
    /// # Errors
    /// A message: credentials or other settings are missing or wrong.
    pub fn open(address: &Address, timeout: Duration) -> std::result::Result<BucketStore, String> {
        let limits = Limits::of(timeout);
        let client = Client::new(&address.bucket, &Settings::read()?, limits)?;
        let below = String::from_utf8_lossy(&address.path[1..]).into_owned();
        Ok(BucketStore {
            place: BucketPlace::new(client, below),
            marked: Mutex::default(),
        })
    }

    fn client(&self) -> &Client {
        &self.place.client
    }

    /// The object or the directory at a path. None: nothing is there.
    ///
    /// # Errors
    /// Errors of the server, as errnos that [`BucketStore::explain`] knows.
    pub fn look(&self, path: &[u8]) -> Result<Option<Meta>> {
        Ok(self.head(path)?.map(|head| head.meta))
    }

    fn head(&self, path: &[u8]) -> Result<Option<Head>> {
        let key = key(path)?;
        if !key.is_empty()
            && let Some(head) = self.client().head(key).map_err(errno)?
        {
            return Ok(Some(head));
        }
        let prefix = prefix(path)?;
        // The bucket itself is there, if a list of it works.
        if !self.client().has_any(&prefix).map_err(errno)? && !prefix.is_empty() {
            return Ok(None);
        }
        self.directory(&prefix).map(Some)
    }

    /// The metadata of a directory that is always there, and whether it has entries.
    ///
    /// # Errors
    /// As for [`BucketStore::look`].
    pub fn top(&self, path: &[u8]) -> Result<(Meta, bool)> {
        let prefix = prefix(path)?;
        // Where access is denied, a list tells the reason.
        let has_any = self.client().has_any(&prefix).map_err(errno)?;
        Ok((self.directory(&prefix)?.meta, has_any))
    }

    /// A directory, with the attributes of its marker.
    fn directory(&self, prefix: &str) -> Result<Head> {
        let marker = match prefix.is_empty() {
            true => None,
            false => self.client().head(prefix).map_err(errno)?,
        };
        Ok(marker.unwrap_or_else(attributes::without_marker))
    }

    /// The entries of a directory: versions and sizes; all attributes of those that `is_new` names.
    ///
    /// # Errors
    /// As for [`BucketStore::look`]. A directory that isn't there has no entries.
    pub fn entries(&self, path: &[u8], is_new: &(dyn Fn(&[u8]) -> bool + Sync)) -> Result<Entries> {
        let prefix = prefix(path)?;
        let listed = self.client().list(&prefix).map_err(errno)?;
        let mut entries = Entries::default();
        let mut known = HashSet::new();
        let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
        for below in &listed.prefixes {
            let name = below[prefix.len()..].trim_end_matches('/');
            match is_name(name) && below.len() == prefix.len() + name.len() + 1 {
                true => {
                    known.insert(name);
                    let meta = attributes::without_marker().meta;
                    entries.all.push((name.into(), meta));
                }
                false => entries.odd.push(below.clone()),
            }
        }
        for object in &listed.objects {
            let name = &object.key[prefix.len()..];
            match is_name(name) && !known.contains(name) {
                true => entries.all.push((name.into(), object.meta())),
                // The directory's own marker is there, too.
                false if name.is_empty() => {}
                false => entries.odd.push(object.key.clone()),
            }
        }
        self.complete(path, &mut entries, is_new)?;
        Ok(entries)
    }

    /// Asks for all attributes of those entries that `is_new` names.
    fn complete(
        &self,
        path: &[u8],
        entries: &mut Entries,
        is_new: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Result<()> {
        let new: Vec<usize> = (0..entries.all.len())
            .filter(|&at| is_new(&entries.all[at].0))
            .collect();
        let may_wait = |meta: &Meta| new.len() > ASKED && meta.size > LONGEST_TARGET;
        let asked: Vec<usize> = (new.iter().copied())
            .filter(|&at| !may_wait(&entries.all[at].1))
            .collect();
        let found = Mutex::new(Ok(Vec::new()));
        for_each(ASKERS, &asked, |&at| {
            if lock(&found).is_err() {
                return;
            }
            let (name, meta) = &entries.all[at];
            let full = join(path, name);
            let head = match meta.is_dir() {
                true => prefix(&full).and_then(|prefix| self.directory(&prefix).map(Some)),
                false => key(&full).and_then(|key| self.client().head(key).map_err(errno)),
            };
            // Signs of life, for who waits for this.
            let _ = is_new(name);
            let mut found = lock(&found);
            match (&mut *found, head) {
                (Ok(all), Ok(head)) => all.push((at, head)),
                (Ok(_), Err(e)) => *found = Err(e),
                (Err(_), _) => {}
            }
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        found.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (at, head) in found {
            match head {
                Some(head) => entries.all[at].1 = head.meta,
                // Removed since it was listed.
                None => drop(entries.all.swap_remove(at)),
            }
        }
        Ok(())
    }

    /// Opens an object for reading: the version that is there now.
    ///
    /// # Errors
    /// ENOENT; EISDIR; ELOOP: it is a symbolic link. Others as for [`BucketStore::look`].
    pub fn read(&self, path: &[u8]) -> Result<BucketFile<'_>> {
        let head = self.head(path)?.ok_or(Errno::NOENT)?;
        match head.meta.kind() {
            libc::S_IFREG => Ok(BucketFile::new(self.client(), key(path)?, head)),
            libc::S_IFDIR => Err(Errno::ISDIR),
            _ => Err(Errno::LOOP),
        }
    }

    /// # Errors
    /// As readlink(2).
    pub fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        let head = self.head(path)?.ok_or(Errno::NOENT)?;
        self.place.target(path, head)
    }

    /// The condition of a write that replaces `version`, or nothing.
    fn replaces(&self, path: &[u8], replaced: Option<u64>) -> Result<Replaces> {
        let has_conditions = self.place.has_conditions();
        let Some(replaced) = replaced else {
            return match has_conditions {
                true => Ok(Replaces::Nothing),
                false if self.client().head(key(path)?).map_err(errno)?.is_some() => Err(CHANGED),
                false => Ok(Replaces::Anything),
            };
        };
        match self.client().head(key(path)?).map_err(errno)? {
            Some(head) if version(&head.etag) == replaced => match has_conditions {
                true => Ok(Replaces::Version(head.etag)),
                false => Ok(Replaces::Anything),
            },
            _ => Err(CHANGED),
        }
    }

    /// Stores a file with its attributes, and with those of `user` that an object can have, in
    /// place of the version `replaced`, or of nothing. The new version.
    ///
    /// # Errors
    /// [`Trouble`]; [`Trouble::Write`] with [`CHANGED`]: another version is there.
    pub fn put(
        &self,
        path: &[u8],
        source: &dyn Source,
        replaced: Option<u64>,
        user: UserAttributes,
    ) -> std::result::Result<u64, Trouble> {
        let replaces = self.replaces(path, replaced).map_err(Trouble::Write)?;
        let etag = self
            .place
            .put_replacing(path, source, &replaces, &kept(user))?;
        Ok(version(&etag))
    }

    /// Whether the ETag of a version says that it has the source's bytes: as the MD5 of them, or
    /// that of the MD5s of parts as this crate makes them. False: it has others, or the server
    /// makes its ETags otherwise.
    ///
    /// # Errors
    /// Errors of reading the source.
    pub fn has_content(
        &self,
        version_there: u64,
        source: &dyn Source,
    ) -> std::result::Result<bool, Trouble> {
        let size = source.meta().size;
        let is_whole = size <= PART;
        let each = if is_whole { size } else { part_size(size) };
        let mut sums = Vec::new();
        let mut at = 0;
        while at < size || sums.is_empty() {
            let mut bytes = vec![0; each.min(size - at) as usize];
            source.read(&mut bytes, at)?;
            at += bytes.len() as u64;
            sums.push(<[u8; 16]>::from(Md5::digest(&bytes)));
        }
        let etag = match (is_whole, &sums[..]) {
            (true, [sum]) => hex(sum),
            (_, sums) => format!("{}-{}", hex(&Md5::digest(sums.as_flattened())), sums.len()),
        };
        Ok(version(&etag) == version_there)
    }

    /// Makes a symbolic link where nothing is.
    ///
    /// # Errors
    /// EEXIST; others as for [`BucketStore::look`].
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        let replaces = match self.replaces(path, None) {
            Err(CHANGED) => return Err(Errno::EXIST),
            replaces => replaces?,
        };
        let meta = Meta {
            mode: libc::S_IFLNK | 0o777,
            ..attributes::without_marker().meta
        };
        let headers = attributes::headers(&meta);
        let key = key(path)?;
        let put = self.place.conditional(&replaces, |replaces| {
            self.client().put(key, target, &headers, replaces)
        });
        match put {
            Err(fault) if fault.errno == CHANGED => Err(Errno::EXIST),
            put => put.map(|_| ()).map_err(errno),
        }
    }

    /// Makes a directory where nothing is: an object of no bytes, whose key ends in a slash.
    ///
    /// # Errors
    /// EEXIST; others as for [`BucketStore::look`].
    pub fn mkdir(&self, path: &[u8]) -> Result<()> {
        if self.look(path)?.is_some() {
            return Err(Errno::EXIST);
        }
        let meta = attributes::without_marker().meta;
        self.place
            .put_marker(path, &meta, &Vec::new())
            .map_err(errno)?;
        lock(&self.marked).insert(path.to_vec());
        Ok(())
    }

    /// The `user.*` attributes of an object or a directory.
    ///
    /// # Errors
    /// ENOENT; others as for [`BucketStore::look`].
    pub fn user_attributes(&self, path: &[u8], is_dir: bool) -> Result<UserAttributes> {
        match is_dir {
            true => Ok(self.directory(&prefix(path)?)?.user),
            false => Ok(self.head(path)?.ok_or(Errno::NOENT)?.user),
        }
    }

    /// Gives an object or a directory the mode, owner and time of modification in `meta`, and those
    /// of the attributes `user` that it can have, unless it has them. None: its attributes stay.
    /// `of`: the version that is expected. The version that is there then; 0 for a directory.
    ///
    /// # Errors
    /// [`CHANGED`]: another version is there.
    /// ENOENT; others as for [`BucketStore::look`].
    pub fn put_attributes(
        &self,
        path: &[u8],
        meta: &Meta,
        user: Option<UserAttributes>,
        of: Option<u64>,
    ) -> Result<u64> {
        let written = |m: &Meta| (m.mode, m.uid, m.gid, m.mtime);
        let there = self.head(path)?.ok_or(Errno::NOENT)?;
        let user = user.map_or_else(|| there.user.clone(), kept);
        let is_same = written(&there.meta) == written(meta) && there.user == user;
        if of.is_some_and(|of| of != there.meta.ino) {
            return Err(CHANGED);
        }
        if is_same && !there.etag.is_empty() {
            return Ok(there.meta.ino);
        }
        if there.meta.kind() != meta.kind() {
            return Err(Errno::EXIST);
        }
        match meta.is_dir() {
            // The bucket's own attributes can't be kept.
            true if prefix(path)?.is_empty() => Ok(0),
            true => {
                let put = self.place.put_marker(path, meta, &user);
                put.map(|()| 0).map_err(errno)
            }
            false => {
                let (key, meta) = (key(path)?, *meta);
                let (size, etag) = (there.meta.size, there.etag.clone());
                let as_now = Head {
                    meta,
                    user,
                    ..there
                };
                let headers = Some(all_of(&as_now));
                let copied = self.copy_object((key, &etag, size), key, headers);
                copied.map(|etag| version(&etag)).map_err(errno)
            }
        }
    }

    /// Removes an object. Its directory stays.
    ///
    /// # Errors
    /// As for [`BucketStore::look`].
    pub fn unlink(&self, path: &[u8]) -> Result<()> {
        self.keep_directory(path)?;
        self.client().delete(key(path)?).map_err(errno)
    }

    /// Removes a directory, which must be empty. The one above stays.
    ///
    /// # Errors
    /// ENOTEMPTY; others as for [`BucketStore::look`].
    pub fn rmdir(&self, path: &[u8]) -> Result<()> {
        let prefix = prefix(path)?;
        let listed = self.client().list(&prefix).map_err(errno)?;
        let is_marker = |object: &Object| object.key == prefix;
        if !listed.prefixes.is_empty() || !listed.objects.iter().all(is_marker) {
            return Err(Errno::NOTEMPTY);
        }
        self.keep_directory(path)?;
        lock(&self.marked).remove(path);
        self.client().delete(&prefix).map_err(errno)
    }

    /// Gives the directory of a path a marker, so that it outlives its last entry.
    fn keep_directory(&self, path: &[u8]) -> Result<()> {
        let directory = split(path).0;
        let prefix = prefix(directory)?;
        let is_top = prefix.trim_end_matches('/') == self.place.below.trim_end_matches('/');
        if is_top || lock(&self.marked).contains(directory) {
            return Ok(());
        }
        if self.client().head(&prefix).map_err(errno)?.is_none() {
            let meta = attributes::without_marker().meta;
            self.place
                .put_marker(directory, &meta, &Vec::new())
                .map_err(errno)?;
        }
        lock(&self.marked).insert(directory.to_vec());
        Ok(())
    }

    /// Copies an object on the server. Nothing is replaced unless `replaces`. The new object's
    /// metadata, but for those that the server gives it.
    ///
    /// # Errors
    /// ENOENT; EEXIST; EXDEV: it is a directory. EBUSY: others have changed it meanwhile.
    pub fn copy(&self, from: &[u8], to: &[u8], replaces: bool) -> Result<Meta> {
        let head = self.head(from)?.ok_or(Errno::NOENT)?;
        if head.meta.is_dir() {
            return Err(Errno::XDEV);
        }
        let there = self.head(to)?;
        let is_done = |there: &Head| {
            let same = |m: &Meta| (m.mode, m.size, m.mtime);
            there.etag == head.etag && same(&there.meta) == same(&head.meta)
        };
        match &there {
            // By an earlier attempt, which has died.
            Some(there) if is_done(there) => return Ok(there.meta),
            Some(there) if there.meta.is_dir() => return Err(Errno::ISDIR),
            Some(_) if !replaces => return Err(Errno::EXIST),
            _ => {}
        }
        // One that was written in parts is copied in parts, so that its ETag stays.
        let size = head.meta.size;
        let in_parts = size > PART && head.etag.contains('-') || size > LARGEST_COPY;
        let headers = in_parts.then(|| all_of(&head));
        let source = (key(from)?, &head.etag[..], head.meta.size);
        let etag = self.copy_object(source, key(to)?, headers);
        let etag = etag.map_err(changed)?;
        Ok(Meta {
            ino: version(&etag),
            ..head.meta
        })
    }

    /// Copies an object on the server: its key, version and size. With `headers`, these replace its
    /// metadata. The new version's ETag.
    fn copy_object(
        &self,
        (from, etag, size): (&str, &str, u64),
        to: &str,
        headers: Option<Vec<(String, String)>>,
    ) -> std::result::Result<String, Fault> {
        let headers = match headers {
            Some(headers) if size > PART && etag.contains('-') || size > LARGEST_COPY => headers,
            headers => return self.client().copy(from, etag, to, headers.as_deref()),
        };
        let upload = self.client().begin_plain_upload(to, headers)?;
        let copied = self.copy_parts(&upload, (from, etag, size));
        let ended = copied.and_then(|parts| {
            self.client()
                .end_upload(&upload, &parts, &Replaces::Anything)
        });
        if ended.is_err() {
            let _ = self.client().abort(&upload);
        }
        ended
    }

    fn copy_parts(
        &self,
        upload: &Upload,
        (from, etag, size): (&str, &str, u64),
    ) -> std::result::Result<Vec<Part>, Fault> {
        let each = part_size(size);
        let numbers: Vec<u64> = (0..size.div_ceil(each)).collect();
        let done = Mutex::new(Ok(Vec::new()));
        for_each(COPIERS, &numbers, |&number| {
            if lock(&done).is_err() {
                return;
            }
            let range = (number * each, ((number + 1) * each).min(size));
            let part = self
                .client()
                .copy_part(upload, number as u32 + 1, (from, etag), range);
            let mut done = lock(&done);
            match (&mut *done, part) {
                (Ok(all), Ok(part)) => all.push(part),
                (Ok(_), Err(fault)) => *done = Err(fault),
                (Err(_), _) => {}
            }
        });
        let mut parts: Vec<Part> = done.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        parts.sort_unstable_by_key(|part| part.number);
        Ok(parts)
    }

    /// Renames an object: a copy on the server, and a removal.
    ///
    /// # Errors
    /// As for [`BucketStore::copy`].
    pub fn rename(&self, from: &[u8], to: &[u8], replaces: bool) -> Result<Meta> {
        let meta = self.copy(from, to, replaces)?;
        self.unlink(from)?;
        Ok(meta)
    }

    /// The path as users write it.
    pub fn show(&self, path: &[u8]) -> String {
        self.place.show(path)
    }

    /// An error as a sentence with advice, and with details of the last failure of its kind.
    pub fn explain(&self, error: Errno) -> String {
        self.client().explain(error)
    }
}

impl Object {
    /// The metadata that a list tells.
    fn meta(&self) -> Meta {
        Meta {
            dev: DEVICE,
            ino: version(&self.etag),
            mode: libc::S_IFREG | 0o644,
            size: self.size,
            atime: self.modified,
            mtime: self.modified,
            ctime: self.modified,
            ..attributes::without_marker().meta
        }
    }
}

/// The headers of an object with all metadata of another one.
fn all_of(head: &Head) -> Vec<(String, String)> {
    let mut headers = attributes::headers(&head.meta);
    headers.extend(user_headers(&head.user));
    let content_type = head.content_type.clone();
    headers.extend(content_type.map(|t| ("content-type".to_owned(), t)));
    headers
}

/// An errno of a change of names: programs know EBUSY.
fn changed(fault: Fault) -> Errno {
    match fault.errno {
        CHANGED => Errno::BUSY,
        other => other,
    }
}
