//! The place of a campaign's data: a directory, a directory of a running pool, or a prefix of a
//! bucket.
//!
//! A directory can be *hidden*, that is, renamed to a name beside its own, so that programs don't
//! find it by its path. Data are hidden during a grace period, and while they are copied, so that
//! nobody changes them. Programs that have files open can go on writing; the copy notices such
//! writes ([`crate::moves`]).

use crate::record::{Member, Usage};
use crate::{Result, now};
use forebay_backing::{
    Address, BucketStore, DirectoryStore, PoolStore, SlowStore, explain, join, split,
};
use forebay_client::Pool;
use forebay_posix::Fs;
use forebay_staging::{Options, Progress, Report, Team, stage};
use rustix::io::Errno;
use std::process::Command;
use std::sync::Arc;

/// Prefix of places in a pool.
pub const POOL: &str = "pool:";
/// Maximum depth of a directory tree that can be counted or removed. Directories.
const DEEPEST: usize = 1000;

pub struct Area {
    place: String,
    path: Vec<u8>,
    /// None: the place is a directory. The directory is opened for each use, since its path may
    /// lead to another directory by then.
    store: Option<Box<dyn SlowStore>>,
}

impl Area {
    /// Returns the area at a place: an absolute path, `s3://BUCKET/PREFIX`, or `pool:NAME/PATH`.
    /// Sends no request yet.
    ///
    /// # Errors
    /// The bucket's credentials are missing; the pool doesn't run on this host; `place` has none of
    /// these forms.
    pub fn open(place: &str) -> Result<Area> {
        let area = |path: Vec<u8>, store| Area {
            place: place.to_owned(),
            path,
            store,
        };
        if let Some((name, path)) = place.strip_prefix(POOL).and_then(|p| p.split_once('/')) {
            let pool = Pool::open(name).map_err(|e| {
                format!("the tier's pool '{name}' can't be used here: {e}; call this where it runs")
            })?;
            let mount = pool.config().mount.clone();
            let store = PoolStore::new(Fs::for_staging(Arc::new(pool)), &mount);
            return Ok(area(format!("/{path}").into(), Some(Box::new(store))));
        }
        match Address::parse(place.as_bytes()) {
            Some(address) => {
                let address = address.map_err(|e| e.to_string())?;
                let bucket = BucketStore::for_staging(&address).map_err(|e| e.to_string())?;
                Ok(area(address.path, Some(Box::new(bucket))))
            }
            None if place.starts_with('/') => Ok(area(place.into(), None)),
            None => Err(format!("'{place}' is no absolute path")),
        }
    }

    /// Calls a function with the area's store.
    fn with<T>(&self, f: impl FnOnce(&dyn SlowStore) -> Result<T>) -> Result<T> {
        match &self.store {
            Some(store) => f(store.as_ref()),
            None => f(&DirectoryStore::of(&self.path).map_err(|e| self.unreached(e))?),
        }
    }

    /// Calls a function with a store that has the area as an entry. If a symbolic link has replaced
    /// the area's directory, the function acts on the link itself.
    fn with_above<T>(&self, f: impl FnOnce(&dyn SlowStore) -> Result<T>) -> Result<T> {
        match &self.store {
            Some(store) => f(store.as_ref()),
            None => f(&DirectoryStore::beside(&self.path).map_err(|e| self.unreached(e))?),
        }
    }

    fn unreached(&self, e: Errno) -> String {
        format!("{}: {}", self.place, explain(e))
    }

    /// Returns the place in the form that [`Area::open`] takes.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns the path by which programs see the area, or the bucket's address.
    pub fn path(&self) -> String {
        match &self.store {
            Some(store) => store.show(&self.path),
            None => self.place.clone(),
        }
    }

    /// Returns this area under its hidden name. None if it can't have one, as in a bucket.
    pub fn hidden(&self) -> Option<Area> {
        if self.store.as_ref().is_some_and(|s| s.is_object_store()) {
            return None;
        }
        let (above, name) = self.place.rsplit_once('/')?;
        Area::open(&format!("{above}/.{name}.forebay-campaign")).ok()
    }

    /// Whether the place has a directory or other object.
    ///
    /// # Errors
    /// The place can't be reached.
    pub fn exists(&self) -> Result<bool> {
        self.with(|store| match store.stat(&self.path, false) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(failed(store, &self.path, e)),
        })
    }

    /// Makes a new, empty area that only its owner can use.
    ///
    /// # Errors
    /// The place has an object already; the area can't be made.
    pub fn make(&self) -> Result<()> {
        if self.exists()? {
            return Err(format!(
                "{}: there is something already; a campaign begins empty",
                self.place
            ));
        }
        self.with(|store| make(store, &self.path, 0o700))
    }

    /// Renames a directory to its hidden name, or back. Does nothing if that was done before.
    ///
    /// # Errors
    /// The directory can't be renamed, or both names exist.
    pub fn hide(&self, is_hidden: bool) -> Result<()> {
        let Some(hidden) = self.hidden() else {
            return Ok(());
        };
        let (from, to) = if is_hidden {
            (&self.path, &hidden.path)
        } else {
            (&hidden.path, &self.path)
        };
        self.with_above(|store| match store.rename(from, to, false) {
            Ok(_) => Ok(()),
            Err(Errno::NOENT) if store.stat(to, false).is_ok() => Ok(()),
            Err(e) => Err(format!(
                "{} can't be renamed to {}: {}",
                store.show(from),
                store.show(to),
                store.explain(e)
            )),
        })
    }

    /// Counts the files and bytes below the area, without following links. The area's root isn't
    /// counted.
    ///
    /// # Errors
    /// Something can't be read.
    pub fn measure(&self) -> Result<Usage> {
        let mut usage = Usage::default();
        let mut count = |_: &[u8], size: u64| {
            usage.files += 1;
            usage.bytes += size;
            Ok(())
        };
        self.with(|store| walk(store, &self.path, &mut count))?;
        usage.at = now();
        Ok(usage)
    }

    /// Removes the area and everything in it. A missing area is no error.
    ///
    /// # Errors
    /// Something can't be removed; other files may have been removed.
    pub fn remove(&self) -> Result<()> {
        if self.exists()? {
            self.with_above(|store| remove(store, &self.path, 0))
        } else {
            Ok(())
        }
    }

    /// Copies everything to another area as stage-out does: verified, including attributes.
    ///
    /// # Errors
    /// The copy couldn't begin, or a file couldn't be copied.
    pub fn copy_to(&self, to: &Area, checksum: bool) -> Result<Report> {
        let options = Options {
            checksum,
            ..Options::stage_out()
        };
        let (progress, team) = (Progress::default(), Team::default());
        let report = self.with(|a| {
            to.with(|b| {
                let staged = stage(a, &self.path, b, &to.path, &options, &progress, &team);
                staged.map_err(|e| e.to_string())
            })
        })?;
        match report.failures.first() {
            None if report.complete() => Ok(report),
            None => Err("the copy was interrupted".into()),
            Some(first) => Err(format!(
                "{} of {} couldn't be copied; {}: {}",
                report.failed, report.files, first.path, first.what
            )),
        }
    }

    /// Permits only these users, and the owner, to use the directory, by access control lists.
    ///
    /// # Errors
    /// The area is in a bucket, where the server decides, or in a pool; `setfacl` is missing, or
    /// refuses.
    pub fn share_with(&self, members: &[Member]) -> Result<()> {
        match &self.store {
            None => {}
            Some(store) if store.is_pool() => {
                return Err("a pool is used by its own user only".into());
            }
            Some(_) => return Err("a bucket is shared by the settings of its server".into()),
        }
        let path = &self.place;
        acl(path, &["-R", "-b"])?;
        // New files and directories inherit the default entries. Directories above must be
        // searchable by the members.
        acl(path, &["-R", "-k"])?;
        for member in members {
            let rights = if member.may_write { "rwX" } else { "rX" };
            let entry = format!("u:{}:{rights}", member.user);
            acl(path, &["-R", "-m", &entry])?;
            acl(path, &["-R", "-d", "-m", &entry])?;
        }
        Ok(())
    }
}

fn acl(path: &str, words: &[&str]) -> Result<()> {
    let done = Command::new("setfacl")
        .args(words)
        .arg("--")
        .arg(path)
        .output();
    match done {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(format!(
            "setfacl refuses: {}",
            String::from_utf8_lossy(&done.stderr).trim()
        )),
        Err(e) => Err(format!("setfacl, which sharing needs, can't be run: {e}")),
    }
}

fn failed(store: &dyn SlowStore, path: &[u8], e: Errno) -> String {
    format!("{}: {}", store.show(path), store.explain(e))
}

/// Makes a directory, and the missing directories above it.
fn make(store: &dyn SlowStore, path: &[u8], mode: u32) -> Result<()> {
    let mut made = store.mkdir(path, mode);
    if made == Err(Errno::NOENT) {
        let above = split(path).0;
        make(store, above, 0o777).or_else(|why| match store.stat(above, true) {
            // Another process has made the directory meanwhile.
            Ok(meta) if meta.is_dir() => Ok(()),
            _ => Err(why),
        })?;
        made = store.mkdir(path, mode);
    }
    made.map_err(|e| failed(store, path, e))
}

/// Calls `each` for everything below a path, with its path and size. The size of anything but a
/// file is 0.
fn walk(
    store: &dyn SlowStore,
    path: &[u8],
    each: &mut dyn FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let mut open = vec![(path.to_vec(), 0)];
    while let Some((dir, depth)) = open.pop() {
        if depth > DEEPEST {
            return Err(format!("{}: too deep", store.show(&dir)));
        }
        let names = match store.list(&dir) {
            // The directory was removed meanwhile.
            Err(Errno::NOENT) => continue,
            names => names.map_err(|e| failed(store, &dir, e))?,
        };
        for name in names {
            let at = join(&dir, &name);
            let meta = match store.stat(&at, false) {
                Err(Errno::NOENT) => continue,
                meta => meta.map_err(|e| failed(store, &at, e))?,
            };
            each(&at, if meta.is_file() { meta.size } else { 0 })?;
            if meta.is_dir() {
                open.push((at, depth + 1));
            }
        }
    }
    Ok(())
}

fn remove(store: &dyn SlowStore, path: &[u8], depth: usize) -> Result<()> {
    let why = |e| failed(store, path, e);
    match store.stat(path, false) {
        Err(Errno::NOENT) => return Ok(()),
        Ok(meta) if meta.is_dir() && depth <= DEEPEST => {
            for name in store.list(path).map_err(why)? {
                remove(store, &join(path, &name), depth + 1)?;
            }
            store.rmdir(path)
        }
        Ok(_) => store.unlink(path),
        Err(e) => Err(e),
    }
    .or_else(|e| match e {
        Errno::NOENT => Ok(()),
        e => Err(why(e)),
    })
}
