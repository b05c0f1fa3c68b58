//! The data of a campaign, where they are: a directory, a directory of a running pool, or a prefix
//! of a bucket.
//!
//! A directory can be *hidden*: renamed to a name beside its own, so that programs that come by the
//! path find nothing. That is how data are kept in a grace period, and how nobody changes them while
//! they are copied. Programs that have files open go on; the copy notices ([`crate::moves`]).

use crate::record::{Member, Usage};
use crate::{Result, now};
use forebay_bucket::{Address, BucketPlace};
use forebay_client::Pool;
use forebay_posix::{Fail, Fs, ObjectId, RenameMode};
use forebay_staging::{
    Options, Place, PlainPlace, PoolPlace, Progress, Report, StageError, Team, stage,
};
use rustix::io::Errno;
use std::fs::DirBuilder;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// How a place in a pool begins.
pub const POOL: &str = "pool:";
/// How deep a directory's tree may be to be counted or removed. Directories.
const DEEPEST: usize = 1000;

pub enum Area {
    Directory(PathBuf),
    Pool(Box<InPool>, Vec<u8>),
    Bucket(Box<BucketPlace>, Vec<u8>),
}

/// A running pool of this host.
pub struct InPool {
    name: String,
    mount: String,
    fs: Fs,
}

impl InPool {
    fn open(name: &str) -> Result<InPool> {
        let pool = Pool::open(name).map_err(|e| {
            format!("the tier's pool '{name}' can't be used here: {e}; call this where it runs")
        })?;
        let mount = pool.config().mount.clone();
        Ok(InPool {
            name: name.to_owned(),
            mount,
            fs: Fs::for_staging(Arc::new(pool)),
        })
    }

    fn place(&self) -> PoolPlace<'_> {
        PoolPlace::new(&self.fs, &self.mount)
    }
}

/// Calls a function of any [`Place`] with the place and path of an area.
macro_rules! at {
    ($area:expr, $f:expr $(, $more:expr)*) => {
        match $area {
            Area::Directory(path) => $f(&PlainPlace, path.as_os_str().as_bytes() $(, $more)*),
            Area::Pool(pool, path) => $f(&pool.place(), path $(, $more)*),
            Area::Bucket(place, path) => $f(place.as_ref(), path $(, $more)*),
        }
    };
}

impl Area {
    /// The area of a place: an absolute path, `s3://BUCKET/PREFIX`, or `pool:NAME/PATH`. Nothing is
    /// asked yet.
    ///
    /// # Errors
    /// Credentials of the bucket are missing; the pool doesn't run here; the place is none of
    /// these.
    pub fn open(place: &str) -> Result<Area> {
        if let Some((name, path)) = place.strip_prefix(POOL).and_then(|p| p.split_once('/')) {
            let path = format!("/{path}").into_bytes();
            return Ok(Area::Pool(Box::new(InPool::open(name)?), path));
        }
        match Address::parse(place.as_bytes()) {
            Some(address) => {
                let address = address?;
                let bucket = BucketPlace::open(&address)?;
                Ok(Area::Bucket(Box::new(bucket), address.path))
            }
            None if place.starts_with('/') => Ok(Area::Directory(place.into())),
            None => Err(format!("'{place}' is no absolute path")),
        }
    }

    /// The place, as [`Area::open`] reads it.
    pub fn place(&self) -> String {
        match self {
            Area::Pool(pool, path) => {
                format!("{POOL}{}{}", pool.name, String::from_utf8_lossy(path))
            }
            _ => self.path(),
        }
    }

    /// The path by which programs see it, or the bucket's address.
    pub fn path(&self) -> String {
        at!(self, |place: &dyn Shown, path: &[u8]| place.shown(path))
    }

    /// The same area under its hidden name. None: it has none, as in a bucket.
    pub fn hidden(&self) -> Option<Area> {
        let path = match self {
            Area::Directory(path) => path,
            Area::Pool(..) => {
                let (above, name) = self.place().rsplit_once('/').map(own)?;
                return Area::open(&format!("{above}/.{name}.forebay-campaign")).ok();
            }
            Area::Bucket(..) => return None,
        };
        let name = path.file_name()?.to_string_lossy().into_owned();
        let hidden = path.with_file_name(format!(".{name}.forebay-campaign"));
        Some(Area::Directory(hidden))
    }

    /// Whether there is something at the place.
    ///
    /// # Errors
    /// The place can't be asked.
    pub fn exists(&self) -> Result<bool> {
        fn one(place: &impl Place, path: &[u8]) -> Result<bool> {
            match place.stat(path, false) {
                Ok(_) => Ok(true),
                Err(Errno::NOENT) => Ok(false),
                Err(e) => Err(failed(place, path, e)),
            }
        }
        at!(self, one)
    }

    /// Makes a new, empty area that only its owner can use.
    ///
    /// # Errors
    /// There is something already; it can't be made.
    pub fn make(&self) -> Result<()> {
        if self.exists()? {
            return Err(format!(
                "{}: there is something already; a campaign begins empty",
                self.place()
            ));
        }
        match self {
            Area::Directory(path) => {
                let failed = |e| format!("{}: {e}", path.display());
                if let Some(parent) = path.parent() {
                    DirBuilder::new()
                        .recursive(true)
                        .create(parent)
                        .map_err(failed)?;
                }
                DirBuilder::new().mode(0o700).create(path).map_err(failed)
            }
            Area::Pool(pool, path) => {
                let place = pool.place();
                let mut at = Vec::new();
                let parts: Vec<&[u8]> = path.split(|&b| b == b'/').skip(1).collect();
                for (n, part) in parts.iter().enumerate() {
                    at = below(&at, part);
                    let is_last = n + 1 == parts.len();
                    match place.mkdir(&at, if is_last { 0o700 } else { 0o755 }) {
                        Err(Errno::EXIST) if !is_last => {}
                        made => made.map_err(|e| failed(&place, &at, e))?,
                    }
                }
                Ok(())
            }
            Area::Bucket(place, path) => place
                .mkdir(path, 0o700)
                .map_err(|e| failed(place.as_ref(), path, e)),
        }
    }

    /// Renames a directory to its hidden name, or back. That may have been done already.
    ///
    /// # Errors
    /// The directory can't be renamed, or both names exist.
    pub fn hide(&self, is_hidden: bool) -> Result<()> {
        let hidden = self.hidden();
        if let (Area::Pool(pool, seen), Some(Area::Pool(_, hidden))) = (self, &hidden) {
            return pool.hide(seen, hidden, is_hidden);
        }
        let (Area::Directory(seen), Some(Area::Directory(hidden))) = (self, hidden) else {
            return Ok(());
        };
        let (from, to) = match is_hidden {
            true => (seen, &hidden),
            false => (&hidden, seen),
        };
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, flags) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) if to.exists() => Ok(()),
            Err(e) => Err(format!(
                "{} can't be renamed to {}: {e}",
                from.display(),
                to.display()
            )),
        }
    }

    /// Counts what is there, links not followed. The root isn't counted.
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
        at!(self, walk, &mut count)?;
        usage.at = now();
        Ok(usage)
    }

    /// Removes everything there, and the place itself. It is no error if nothing is there.
    ///
    /// # Errors
    /// Something can't be removed; the rest may be gone.
    pub fn remove(&self) -> Result<()> {
        fn all(place: &impl Place, path: &[u8]) -> Result<()> {
            remove(place, path, 0)
        }
        match self.exists()? {
            true => at!(self, all),
            false => Ok(()),
        }
    }

    /// Copies everything to another area, as stage-out does: verified, attributes included.
    ///
    /// # Errors
    /// The copy couldn't begin, or a file couldn't be copied.
    pub fn copy_to(&self, to: &Area, checksum: bool) -> Result<Report> {
        let options = Options {
            checksum,
            ..Options::stage_out()
        };
        fn from_one<P: Place>(from: &P, a: &[u8], to: &Area, options: &Options) -> Staged {
            at!(to, to_other, from, a, options)
        }
        fn to_other<Q: Place, P: Place>(
            to: &Q,
            b: &[u8],
            from: &P,
            a: &[u8],
            options: &Options,
        ) -> Staged {
            let (progress, team) = (Progress::default(), Team::default());
            stage(from, a, to, b, options, &progress, &team)
        }
        let report = at!(self, from_one, to, &options);
        let report = report.map_err(|e| e.to_string())?;
        match report.failures.first() {
            None if report.complete() => Ok(report),
            None => Err("the copy was interrupted".into()),
            Some(first) => Err(format!(
                "{} of {} couldn't be copied; {}: {}",
                report.failed, report.files, first.path, first.what
            )),
        }
    }

    /// Lets these users use a directory, and nobody else but its owner, by access control lists.
    ///
    /// # Errors
    /// It is a bucket, whose server decides that; `setfacl` isn't there, or refuses.
    pub fn share_with(&self, members: &[Member]) -> Result<()> {
        let path = match self {
            Area::Directory(path) => path,
            Area::Pool(..) => return Err("a pool is used by its own user only".into()),
            Area::Bucket(..) => {
                return Err("a bucket is shared by the settings of its server".into());
            }
        };
        acl(path, &["-R", "-b"])?;
        // New files and directories get the same. Parents must be searchable by others.
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

type Staged = std::result::Result<Report, StageError>;

fn own((above, name): (&str, &str)) -> (String, String) {
    (above.to_owned(), name.to_owned())
}

impl InPool {
    /// Renames a directory to its hidden name, or back. That may have been done already.
    fn hide(&self, seen: &[u8], hidden: &[u8], is_hidden: bool) -> Result<()> {
        let (from, to) = match is_hidden {
            true => (seen, hidden),
            false => (hidden, seen),
        };
        let place = self.place();
        let is_there = |path: &[u8]| place.stat(path, false).is_ok();
        if !is_there(from) && is_there(to) {
            return Ok(());
        }
        let root = ObjectId::ROOT;
        let renamed = self
            .fs
            .rename_at((root, from), (root, to), RenameMode::NoReplace);
        renamed.map_err(|fail| match fail {
            Fail::Errno(e) => failed(&place, from, e),
            _ => format!("{} leads out of the pool", place.show(from)),
        })
    }
}

/// A place whose paths can be shown, without its type.
trait Shown {
    fn shown(&self, path: &[u8]) -> String;
}

impl<P: Place> Shown for P {
    fn shown(&self, path: &[u8]) -> String {
        self.show(path)
    }
}

fn acl(path: &Path, words: &[&str]) -> Result<()> {
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

fn failed(place: &impl Place, path: &[u8], e: Errno) -> String {
    format!("{}: {}", place.show(path), place.explain(e))
}

fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut all = path.to_vec();
    if !all.ends_with(b"/") {
        all.push(b'/');
    }
    all.extend_from_slice(name);
    all
}

/// Calls `each` with path and size (0 but of files) of everything below a path.
fn walk<P: Place>(
    place: &P,
    path: &[u8],
    each: &mut dyn FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let mut open = vec![(path.to_vec(), 0)];
    while let Some((dir, depth)) = open.pop() {
        if depth > DEEPEST {
            return Err(format!("{}: too deep", place.show(&dir)));
        }
        let names = match place.list(&dir) {
            // Removed meanwhile.
            Err(Errno::NOENT) => continue,
            names => names.map_err(|e| failed(place, &dir, e))?,
        };
        for name in names {
            let at = below(&dir, &name);
            let meta = match place.stat(&at, false) {
                Err(Errno::NOENT) => continue,
                meta => meta.map_err(|e| failed(place, &at, e))?,
            };
            each(&at, if meta.is_file() { meta.size } else { 0 })?;
            if meta.is_dir() {
                open.push((at, depth + 1));
            }
        }
    }
    Ok(())
}

fn remove(place: &impl Place, path: &[u8], depth: usize) -> Result<()> {
    let why = |e| failed(place, path, e);
    match place.stat(path, false) {
        Err(Errno::NOENT) => return Ok(()),
        Ok(meta) if meta.is_dir() && depth <= DEEPEST => {
            for name in place.list(path).map_err(why)? {
                remove(place, &below(path, &name), depth + 1)?;
            }
            place.rmdir(path)
        }
        Ok(_) => place.unlink(path),
        Err(e) => Err(e),
    }
    .or_else(|e| match e {
        Errno::NOENT => Ok(()),
        e => Err(why(e)),
    })
}
