//! A bucket as a slow store, for a staging or behind a pool.
//!
//! A version is a number made from the object's ETag ([`Meta::ino`]), with [`DEVICE`] as
//! [`Meta::dev`]. Directories have no versions.
//!
//! Guarantees: if the server supports conditions on writes, an object replaces only the version
//! that the caller names or that a staging has seen. Otherwise the version that the caller names is
//! compared just before the write. A rename is a copy by the server and a removal. If the process
//! dies between the two, both names exist. Behind a pool, empty directories are kept by markers.

use crate::bucket::attributes::{self, DEVICE, Head, kept, version, without_marker};
use crate::bucket::calls::{Part, Replaces, Upload};
use crate::bucket::fault::{CHANGED, Fault};
use crate::bucket::objects::{BucketStore, errno, key, prefix, split};
use crate::bucket::put::{LARGEST_COPY, PART, all_headers, part_size};
use crate::bucket::sign::hex;
use crate::error::Error;
use crate::meta::Meta;
use crate::parallel::try_map;
use crate::source::Source;
use crate::store::{Attributes, Entries, Replaced, SlowStore, StoreFile, UserAttributes};
use forebay_runtime::threads::lock;
use md5::{Digest, Md5};
use rustix::io::{Errno, Result};

/// Number of an object's parts that are copied at the same time.
const COPIERS: usize = 8;

impl SlowStore for BucketStore {
    fn stat(&self, path: &[u8], _follow: bool) -> Result<Meta> {
        let full = self.full(path);
        if path.is_empty() {
            // A prefix without keys is an empty directory. A list shows whether the bucket can be
            // accessed.
            let prefix = prefix(&full)?;
            self.client.has_any(&prefix).map_err(errno)?;
            return Ok(self.directory(&prefix)?.meta);
        }
        Ok(self.find(&full)?.ok_or(Errno::NOENT)?.meta)
    }

    fn list_into(&self, path: &[u8], names: &mut Vec<Vec<u8>>) -> Result<()> {
        let full = self.full(path);
        *names = match &self.seen {
            Some(seen) => self.learn_names(seen, &full)?,
            None => {
                let listed = self.listed(&full)?.all;
                listed.into_iter().map(|(name, _)| name).collect()
            }
        };
        Ok(())
    }

    fn open(&self, path: &[u8], _follow: bool) -> Result<Box<dyn StoreFile + '_>> {
        Ok(Box::new(self.open_object(&self.full(path))?))
    }

    /// Makes a directory's marker, behind a pool. During a staging, makes nothing: the directory
    /// appears with its first entry, or when its attributes are set.
    fn mkdir(&self, path: &[u8], _mode: u32) -> Result<()> {
        let path = self.full(path);
        if let Some(seen) = &self.seen {
            return self.expect_writes(seen, &path);
        }
        if self.head(&path)?.is_some() {
            return Err(Errno::EXIST);
        }
        self.make_marker(&path)
    }

    /// Removes an object. Behind a pool, its directory is kept by a marker.
    fn unlink(&self, path: &[u8]) -> Result<()> {
        let path = self.full(path);
        self.forget(&path);
        self.keep_directory(&path)?;
        self.client.delete(key(&path)?).map_err(changed)
    }

    /// Removes an empty directory's marker. Behind a pool, the directory above is kept by a marker.
    fn rmdir(&self, path: &[u8]) -> Result<()> {
        let path = self.full(path);
        self.forget(&path);
        let listed = self.listed(&path)?;
        if !listed.all.is_empty() || !listed.odd.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.keep_directory(&path)?;
        lock(&self.marked).remove(&path);
        self.client.delete(&prefix(&path)?).map_err(changed)
    }

    /// Makes a symbolic link. Fails if the path exists.
    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        let path = self.full(path);
        let meta = Meta {
            mode: libc::S_IFLNK | 0o777,
            ..without_marker().meta
        };
        let made = self.condition(&path, Replaced::Nothing);
        match made.and_then(|nothing| self.put_link(&path, target, &meta, &nothing)) {
            Err(CHANGED) => Err(Errno::EXIST),
            made => made,
        }
    }

    fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.target(&self.full(path))
    }

    fn at<'a>(&'a self, path: &'a [u8]) -> Box<dyn Attributes + 'a> {
        Box::new(At(self, path))
    }

    fn show(&self, path: &[u8]) -> String {
        let path = self.shown(path);
        let key = String::from_utf8_lossy(path.strip_prefix(b"/").unwrap_or(&path));
        format!("s3://{}/{key}", self.client.bucket)
    }

    fn explain(&self, error: Errno) -> String {
        self.client.explain(error)
    }

    fn is_empty(&self, path: &[u8]) -> Result<bool> {
        let has_any = self.client.has_any(&prefix(&self.full(path))?);
        has_any.map(|has_any| !has_any).map_err(errno)
    }

    /// Copies on the server, then removes the old name. EXDEV for a directory.
    fn rename(&self, from: &[u8], to: &[u8], replaces: bool) -> Result<Option<Meta>> {
        let meta = self.copy_within(&self.full(from), &self.full(to), replaces)?;
        self.unlink(from)?;
        Ok(Some(meta))
    }

    /// Copies on the server: the new name is a separate object.
    fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        let copied = self.copy_within(&self.full(old), &self.full(new), false);
        copied.map(|_| ())
    }

    fn is_object_store(&self) -> bool {
        true
    }

    /// Stores a file. If only the attributes or the name of a version have changed, the content
    /// isn't sent again.
    fn put(
        &self,
        path: &[u8],
        source: &dyn Source,
        user: &UserAttributes,
        replaced: Replaced,
    ) -> std::result::Result<Meta, Error> {
        let path = self.full(path);
        let put = self.put_version(&path, source, user, replaced);
        self.forget(&path);
        Ok(Meta {
            dev: DEVICE,
            ino: put?,
            ..*source.meta()
        })
    }

    fn put_symlink(&self, path: &[u8], target: &[u8], meta: &Meta) -> Result<()> {
        let path = self.full(path);
        let replaces = self.condition(&path, Replaced::Seen)?;
        let put = self.put_link(&path, target, meta, &replaces);
        self.forget(&path);
        put
    }

    fn put_attributes(
        &self,
        path: &[u8],
        meta: &Meta,
        user: Option<&UserAttributes>,
    ) -> Result<()> {
        let path = self.full(path);
        let put = if self.seen.is_some() && meta.is_dir() {
            // The directory may have no entry, so it needs a marker.
            self.put_marker(&path, meta, &Vec::new()).map_err(errno)
        } else {
            self.set_attributes(&path, meta, user, None).map(|_| ())
        };
        self.forget(&path);
        put
    }

    fn user_attributes(&self, path: &[u8], is_dir: bool) -> Result<UserAttributes> {
        let path = self.full(path);
        if is_dir {
            Ok(self.directory(&prefix(&path)?)?.user)
        } else {
            Ok(self.head(&path)?.ok_or(Errno::NOENT)?.user)
        }
    }

    fn copy(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let copied = self.copy_within(&self.full(from), &self.full(to), true);
        copied.map(|_| ())
    }

    fn entries(
        &self,
        path: &[u8],
        is_new: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> Result<Option<Entries>> {
        let full = self.full(path);
        let mut entries = self.listed(&full)?;
        self.complete(&full, &mut entries, is_new)?;
        Ok(Some(entries))
    }
}

/// The object at a path. The object's attributes are set only by [`SlowStore::put_attributes`].
struct At<'a>(&'a BucketStore, &'a [u8]);

impl Attributes for At<'_> {
    fn stat(&self) -> Result<Meta> {
        self.0.stat(self.1, false)
    }
}

impl BucketStore {
    /// Stores a file in place of the version `replaced`. Returns the new version.
    fn put_version(
        &self,
        path: &[u8],
        source: &dyn Source,
        user: &UserAttributes,
        replaced: Replaced,
    ) -> std::result::Result<u64, Error> {
        let meta = source.meta();
        if let Replaced::Version(there) = replaced
            && there.size == meta.size
            && has_content(there.ino, source)?
        {
            match self.set_attributes(path, meta, Some(user), Some(there.ino)) {
                // The present object is of another kind, so it is replaced.
                Err(Errno::EXIST) => {}
                set => return set.map_err(Error::Write),
            }
        }
        let replaces = self.condition(path, replaced).map_err(Error::Write)?;
        let etag = self.put_replacing(path, source, &replaces, &kept(user.clone()))?;
        Ok(version(&etag))
    }

    fn put_link(&self, path: &[u8], target: &[u8], meta: &Meta, replaces: &Replaces) -> Result<()> {
        let headers = attributes::headers(meta);
        let key = key(path)?;
        let put = self.conditional(replaces, |replaces| {
            self.client.put(key, target, &headers, replaces)
        });
        put.map(|_| ()).map_err(errno)
    }

    /// Gives an object or directory the mode, owner and modification time of `meta`, and those of
    /// the attributes `user` that it can have. Writes nothing if it has all of them already. With
    /// `user` None, the `user.*` attributes aren't changed. `of`: the expected version. Returns the
    /// new version; 0 for a directory.
    ///
    /// # Errors
    /// [`CHANGED`]: the object has another version. EEXIST: the object is of another kind. ENOENT.
    fn set_attributes(
        &self,
        path: &[u8],
        meta: &Meta,
        user: Option<&UserAttributes>,
        of: Option<u64>,
    ) -> Result<u64> {
        let written = |m: &Meta| (m.mode, m.uid, m.gid, m.mtime);
        let there = self.find(path)?.ok_or(Errno::NOENT)?;
        let user = user.map_or_else(|| there.user.clone(), |user| kept(user.clone()));
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
        if meta.is_dir() {
            // The bucket itself has no marker that could have attributes.
            if !prefix(path)?.is_empty() {
                self.put_marker(path, meta, &user).map_err(errno)?;
            }
            return Ok(0);
        }
        let key = key(path)?;
        let (size, etag) = (there.meta.size, there.etag.clone());
        let headers = all_of(&Head {
            meta: *meta,
            user,
            ..there
        });
        let copied = self.copy_object((key, &etag, size), key, Some(headers));
        copied.map(|etag| version(&etag)).map_err(errno)
    }

    fn make_marker(&self, path: &[u8]) -> Result<()> {
        let meta = without_marker().meta;
        self.put_marker(path, &meta, &Vec::new()).map_err(changed)?;
        lock(&self.marked).insert(path.to_vec());
        Ok(())
    }

    /// Gives the directory of a path a marker, behind a pool, so that the directory outlives its
    /// last entry.
    fn keep_directory(&self, path: &[u8]) -> Result<()> {
        let directory = split(path).0;
        let prefix = prefix(directory)?;
        let is_top = prefix.trim_end_matches('/') == self.below.trim_end_matches('/');
        if self.seen.is_some() || is_top || lock(&self.marked).contains(directory) {
            return Ok(());
        }
        if self.client.head(&prefix).map_err(errno)?.is_none() {
            return self.make_marker(directory);
        }
        lock(&self.marked).insert(directory.to_vec());
        Ok(())
    }

    /// Copies an object on the server. Replaces nothing unless `replaces`. Returns the new object's
    /// metadata, without the fields that only the server knows.
    ///
    /// # Errors
    /// ENOENT; EEXIST; EXDEV: the object is a directory. EBUSY: others have changed it meanwhile.
    fn copy_within(&self, from: &[u8], to: &[u8], replaces: bool) -> Result<Meta> {
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
            // An earlier attempt made this copy, and died afterwards.
            Some(there) if is_done(there) => return Ok(there.meta),
            Some(there) if there.meta.is_dir() => return Err(Errno::ISDIR),
            Some(_) if !replaces => return Err(Errno::EXIST),
            _ => {}
        }
        // An object that was written in parts is copied in parts, so that it keeps its ETag.
        let size = head.meta.size;
        let in_parts = size > PART && head.etag.contains('-') || size > LARGEST_COPY;
        let headers = in_parts.then(|| all_of(&head));
        let source = (key(from)?, &head.etag[..], size);
        let etag = self.copy_object(source, key(to)?, headers);
        let etag = etag.map_err(changed)?;
        Ok(Meta {
            ino: version(&etag),
            ..head.meta
        })
    }

    /// Copies an object on the server. The object is given by key, version and size. `headers`, if
    /// given, replace its metadata. Returns the new version's ETag.
    fn copy_object(
        &self,
        (from, etag, size): (&str, &str, u64),
        to: &str,
        headers: Option<Vec<(String, String)>>,
    ) -> std::result::Result<String, Fault> {
        let headers = match headers {
            Some(headers) if size > PART && etag.contains('-') || size > LARGEST_COPY => headers,
            headers => return self.client.copy(from, etag, to, headers.as_deref()),
        };
        let upload = self.client.begin_plain_upload(to, headers)?;
        let copied = self.copy_parts(&upload, (from, etag, size));
        let ended =
            copied.and_then(|parts| self.client.end_upload(&upload, &parts, &Replaces::Anything));
        if ended.is_err() {
            let _ = self.client.abort(&upload);
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
        try_map(COPIERS, &numbers, |&number| {
            let range = (number * each, ((number + 1) * each).min(size));
            self.client
                .copy_part(upload, number as u32 + 1, (from, etag), range)
        })
    }
}

/// Whether a version's ETag shows that it has the source's bytes: the ETag is the MD5 of the
/// content, or the MD5 of the MD5s of its parts, in this crate's part size. False: the bytes
/// differ, or the server makes ETags in another form.
///
/// # Errors
/// Errors of reading the source.
fn has_content(version_there: u64, source: &dyn Source) -> std::result::Result<bool, Error> {
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

/// Returns the headers for an object with all metadata of `head`.
fn all_of(head: &Head) -> Vec<(String, String)> {
    let mut headers = all_headers(&head.meta, &head.user);
    let content_type = head.content_type.clone();
    headers.extend(content_type.map(|t| ("content-type".to_owned(), t)));
    headers
}

/// Returns the errno for a failed change of names. Programs know EBUSY rather than [`CHANGED`].
fn changed(fault: Fault) -> Errno {
    match fault.errno {
        CHANGED => Errno::BUSY,
        other => other,
    }
}
