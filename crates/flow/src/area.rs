//! Files below a directory that a user can write to: nothing leads out of it.
//!
//! Each part of a path is opened for itself, below the part before it, and symbolic links are
//! refused, so that no program that swaps a directory for a link in between can lead the service
//! elsewhere. Only regular files are read. A file is written beside its name, and then renamed.

use crate::names::path_parts;
use crate::token;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat};
use rustix::io::Errno;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Most files that a listing has.
pub const MOST_LISTED: usize = 10_000;
/// How deep a listing goes. Directories.
const DEEPEST: usize = 32;
/// Bytes that are copied at once.
const PIECE: usize = 256 << 10;

/// Why a file can't be had.
#[derive(Debug)]
pub enum Fault {
    /// The path can't be one: a message.
    Path(String),
    /// There is none, or something on the way isn't a directory.
    Absent,
    /// The object is no regular file, or is a directory that isn't empty.
    Kind,
    /// The sender's bytes ended early, or came too slowly.
    Sender(io::Error),
    System(io::Error),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    pub path: String,
    /// `file`, `directory`, `link` or `other`.
    pub kind: &'static str,
    /// Bytes.
    pub size: u64,
    /// Seconds since 1970.
    pub changed: i64,
}

pub struct Area {
    top: OwnedFd,
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

impl Area {
    /// The directory at this path, which is the service's or a campaign's.
    ///
    /// # Errors
    /// The directory can't be opened.
    pub fn open(path: &Path) -> Result<Area, Fault> {
        let top = rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(fault)?;
        Ok(Area { top })
    }

    /// The directory in which the last part is, and that part. Missing ones are made if wanted.
    fn parent<'a>(&self, path: &'a str, make: bool) -> Result<(OwnedFd, &'a str), Fault> {
        let mut parts = path_parts(path).map_err(Fault::Path)?;
        let last = parts.pop().unwrap_or_default();
        let mut at = self.top.try_clone().map_err(Fault::System)?;
        for part in parts {
            if make {
                match rustix::fs::mkdirat(&at, part, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(fault(e)),
                }
            }
            at = below(&at, part)?;
        }
        Ok((at, last))
    }

    /// Writes a file of `size` bytes from a sender. The file is whole, or isn't there.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn put(&self, path: &str, from: &mut dyn Read, size: u64) -> Result<(), Fault> {
        let (dir, name) = self.parent(path, true)?;
        let number: [u8; 8] = token::random().map_err(Fault::Path)?;
        let beside = format!(".upload-{}", token::hex(&number));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&dir, &beside, flags, Mode::from_raw_mode(0o644)).map_err(fault)?;
        let written = receive(File::from(file), from, size).and_then(|()| {
            rustix::fs::renameat(&dir, &beside, &dir, name).map_err(|e| match e {
                Errno::ISDIR => Fault::Kind,
                e => fault(e),
            })
        });
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&dir, &beside, AtFlags::empty());
        }
        written
    }

    /// A file for reading, and its size.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn get(&self, path: &str) -> Result<(File, u64), Fault> {
        let (dir, name) = self.parent(path, false)?;
        // Without NONBLOCK the open of a FIFO would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&dir, name, flags, Mode::empty()).map_err(fault)?;
        let stat = rustix::fs::fstat(&file).map_err(fault)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((File::from(file), stat.st_size as u64)),
            _ => Err(Fault::Kind),
        }
    }

    /// Removes a file, a link, or an empty directory.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn remove(&self, path: &str) -> Result<(), Fault> {
        let (dir, name) = self.parent(path, false)?;
        match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => {
                match rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR) {
                    Err(Errno::NOTEMPTY | Errno::EXIST) => Err(Fault::Kind),
                    other => other.map_err(fault),
                }
            }
            other => other.map_err(fault),
        }
    }

    /// All that is below, by path, without Snakemake's own directory. Whether that is all.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn list(&self) -> Result<(Vec<Listed>, bool), Fault> {
        let mut found = Vec::new();
        let all = self.walk(&self.top, "", 0, &mut found)?;
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok((found, all))
    }

    fn walk(
        &self,
        dir: &OwnedFd,
        before: &str,
        depth: usize,
        found: &mut Vec<Listed>,
    ) -> Result<bool, Fault> {
        let mut all = true;
        let mut inner = Vec::new();
        for entry in Dir::read_from(dir).map_err(fault)? {
            let entry = entry.map_err(fault)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == "." || name == ".." || (depth == 0 && name == ".snakemake") {
                continue;
            }
            if found.len() >= MOST_LISTED {
                return Ok(false);
            }
            let looked = rustix::fs::statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            let Ok(stat) = looked else { continue };
            let path = format!("{before}{name}");
            let kind = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => "file",
                FileType::Directory => "directory",
                FileType::Symlink => "link",
                _ => "other",
            };
            if kind == "directory" {
                inner.push(path.clone());
            }
            found.push(Listed {
                path,
                kind,
                size: stat.st_size as u64,
                changed: stat.st_mtime,
            });
        }
        for path in inner {
            let name = path.strip_prefix(before).unwrap_or_default();
            match below(dir, name) {
                Ok(_) if depth >= DEEPEST => all = false,
                Ok(dir) => all &= self.walk(&dir, &format!("{path}/"), depth + 1, found)?,
                // The directory has gone, or this user may not read it.
                Err(_) => all = false,
            }
        }
        Ok(all)
    }
}

fn below(dir: impl AsFd, part: &str) -> Result<OwnedFd, Fault> {
    openat(dir, part, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()).map_err(fault)
}

fn receive(mut to: File, from: &mut dyn Read, size: u64) -> Result<(), Fault> {
    let mut left = size;
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let most = piece.len().min(left.try_into().unwrap_or(usize::MAX));
        let got = from.read(&mut piece[..most]).map_err(Fault::Sender)?;
        if got == 0 {
            return Err(Fault::Sender(io::ErrorKind::UnexpectedEof.into()));
        }
        io::Write::write_all(&mut to, &piece[..got]).map_err(Fault::System)?;
        left -= got as u64;
    }
    to.sync_all().map_err(Fault::System)
}

fn fault(e: Errno) -> Fault {
    match e {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Fault::Absent,
        Errno::NXIO => Fault::Kind,
        e => Fault::System(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn nothing_leads_out() {
        let top = std::env::temp_dir().join(format!("fbf-area-{}", std::process::id()));
        let (inside, outside) = (top.join("in"), top.join("out"));
        fs::create_dir_all(inside.join("d")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("secret"), "s").unwrap();
        for (link, to) in [("dir", "../out"), ("d/file", "../../out/secret")] {
            std::os::unix::fs::symlink(to, inside.join(link)).unwrap();
        }
        let area = Area::open(&inside).unwrap();
        let put = |path: &str| area.put(path, &mut "new".as_bytes(), 3);
        put("a/b/c").unwrap();
        assert!(matches!(put("dir/x"), Err(Fault::Absent)));
        assert!(matches!(put("../out/x"), Err(Fault::Path(_))));
        assert!(matches!(put("a/b"), Err(Fault::Kind)), "a directory stays");
        // The link is replaced, not followed.
        assert!(matches!(area.get("d/file"), Err(Fault::Absent)));
        put("d/file").unwrap();
        assert_eq!(fs::read(outside.join("secret")).unwrap(), b"s");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert!(matches!(area.get("dir/secret"), Err(Fault::Absent)));
        assert!(matches!(area.get("d"), Err(Fault::Kind)));
        assert!(matches!(area.remove("dir/secret"), Err(Fault::Absent)));
        assert!(matches!(area.remove("d"), Err(Fault::Kind)));
        // Bytes that are missing leave nothing.
        let short = area.put("short", &mut "ab".as_bytes(), 3);
        assert!(matches!(short, Err(Fault::Sender(_))));
        let (found, all) = area.list().unwrap();
        let paths: Vec<&str> = found.iter().map(|l| l.path.as_str()).collect();
        assert_eq!(paths, ["a", "a/b", "a/b/c", "d", "d/file", "dir"]);
        assert!(all && found[5].kind == "link");
        area.remove("dir").unwrap();
        area.remove("a/b/c").unwrap();
        area.remove("a/b").unwrap();
        assert!(outside.join("secret").exists());
        fs::remove_dir_all(&top).unwrap();
    }
}
