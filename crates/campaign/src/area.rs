//! The data of a campaign, where they are: a directory, or a prefix of a bucket.
//!
//! A directory can be *hidden*: renamed to a name beside its own, so that programs that come by the
//! path find nothing. That is how data are kept in a grace period, and how nobody changes them while
//! they are copied. Programs that have files open go on; the copy notices ([`crate::moves`]).

use crate::record::{Member, Usage};
use crate::{Result, now};
use forebay_bucket::{Address, BucketPlace};
use forebay_staging::{Options, Place, PlainPlace, Progress, Report, Team, stage};
use rustix::io::Errno;
use std::fs::DirBuilder;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How deep a directory's tree may be to be counted or removed. Directories.
const DEEPEST: usize = 1000;

pub enum Area {
    Directory(PathBuf),
    Bucket(Box<BucketPlace>, Vec<u8>),
}

/// Calls a function of any [`Place`] with the place and path of an area.
macro_rules! at {
    ($area:expr, $f:expr $(, $more:expr)*) => {
        match $area {
            Area::Directory(path) => $f(&PlainPlace, path.as_os_str().as_bytes() $(, $more)*),
            Area::Bucket(place, path) => $f(place.as_ref(), path $(, $more)*),
        }
    };
}

impl Area {
    /// The area of a place: an absolute path, or `s3://BUCKET/PREFIX`. Nothing is asked yet.
    ///
    /// # Errors
    /// Credentials of the bucket are missing; the place is neither.
    pub fn open(place: &str) -> Result<Area> {
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
        at!(self, |place: &dyn Shown, path: &[u8]| place.shown(path))
    }

    /// The same area under its hidden name. None: it has none, as in a bucket.
    pub fn hidden(&self) -> Option<Area> {
        let Area::Directory(path) = self else {
            return None;
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
            Area::Bucket(place, path) => place
                .mkdir(path, 0o700)
                .map_err(|e| failed(place.as_ref(), path, e)),
        }
    }

    /// Renames a directory to its hidden name, or back. It may have been done already.
    ///
    /// # Errors
    /// The directory can't be renamed, or both names exist.
    pub fn hide(&self, is_hidden: bool) -> Result<()> {
        let (Area::Directory(seen), Some(Area::Directory(hidden))) = (self, self.hidden()) else {
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
        let (progress, team) = (Progress::default(), Team::default());
        let report = match (self, to) {
            (Area::Directory(a), Area::Directory(b)) => {
                let (a, b) = (a.as_os_str().as_bytes(), b.as_os_str().as_bytes());
                stage(&PlainPlace, a, &PlainPlace, b, &options, &progress, &team)
            }
            (Area::Directory(a), Area::Bucket(place, b)) => {
                let a = a.as_os_str().as_bytes();
                stage(
                    &PlainPlace,
                    a,
                    place.as_ref(),
                    b,
                    &options,
                    &progress,
                    &team,
                )
            }
            (Area::Bucket(place, a), Area::Directory(b)) => {
                let b = b.as_os_str().as_bytes();
                stage(
                    place.as_ref(),
                    a,
                    &PlainPlace,
                    b,
                    &options,
                    &progress,
                    &team,
                )
            }
            (Area::Bucket(one, a), Area::Bucket(two, b)) => {
                stage(one.as_ref(), a, two.as_ref(), b, &options, &progress, &team)
            }
        };
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
        let Area::Directory(path) = self else {
            return Err("a bucket is shared by the settings of its server".into());
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
