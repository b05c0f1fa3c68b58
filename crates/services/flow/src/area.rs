//! Access to files below a directory in which a user can write. No path leads outside the
//! directory.
//!
//! Paths are resolved by [`Tree`], so a program that replaces a directory by a link can't redirect
//! the service. Only regular files are read. A file is written under a temporary name in its
//! directory, and then renamed.

use crate::names::path_parts;
use crate::token;
use forebay_runtime::beneath::{Tree, bytes};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, openat};
use rustix::io::Errno;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Maximum number of files in a listing.
pub const MAX_LISTED_FILES: usize = 10_000;
/// Maximum depth of a listing. Directories.
const DEEPEST: usize = 32;
/// Number of bytes that are copied at a time.
const PIECE: usize = 256 << 10;

/// The reason why a file isn't available.
#[derive(Debug)]
pub enum Error {
    /// The path is invalid, for the reason in the message.
    Path(String),
    /// The file doesn't exist, or a component of its path isn't a directory.
    Absent,
    /// The object isn't a regular file, or is a directory that isn't empty.
    Kind,
    /// The bytes from the sender ended early, or came too slowly.
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
    tree: Tree,
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

impl Area {
    /// Opens the directory at this path. The directory belongs to the service or a campaign.
    ///
    /// # Errors
    /// The directory can't be opened.
    pub fn open(path: &Path) -> Result<Area, Error> {
        let tree = Tree::open(bytes(path)).map_err(from_errno)?;
        Ok(Area { tree })
    }

    /// Writes a file of `size` bytes from a sender. The file appears only when it is complete.
    /// Missing directories are made.
    pub fn put(&self, path: &str, from: &mut dyn Read, size: u64) -> Result<(), Error> {
        let mut parts = path_parts(path).map_err(Error::Path)?;
        parts.pop();
        let mut dir = String::new();
        for part in parts {
            dir = format!("{dir}{part}/");
            match self.tree.mkdir(dir.as_bytes(), 0o755) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(from_errno(e)),
            }
        }
        let number: [u8; 8] = token::random().map_err(Error::Path)?;
        let beside = format!("{dir}.upload-{}", token::hex(&number));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::from_raw_mode(0o644);
        let file = self.tree.open_file(beside.as_bytes(), flags, mode);
        let file = file.map_err(from_errno)?;
        let written = receive(File::from(file), from, size).and_then(|()| {
            let flags = RenameFlags::empty();
            let renamed = self.tree.rename(beside.as_bytes(), path.as_bytes(), flags);
            renamed.map_err(|e| match e {
                Errno::ISDIR => Error::Kind,
                e => from_errno(e),
            })
        });
        if written.is_err() {
            let _ = self.tree.unlink(beside.as_bytes());
        }
        written
    }

    /// Opens a file for reading. Returns the file and its size in bytes.
    pub fn get(&self, path: &str) -> Result<(File, u64), Error> {
        path_parts(path).map_err(Error::Path)?;
        // O_NONBLOCK: otherwise opening a FIFO would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = self.tree.open_file(path.as_bytes(), flags, Mode::empty());
        let file = file.map_err(from_errno)?;
        let stat = rustix::fs::fstat(&file).map_err(from_errno)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((File::from(file), stat.st_size as u64)),
            _ => Err(Error::Kind),
        }
    }

    /// Removes a file, a link, or an empty directory.
    pub fn remove(&self, path: &str) -> Result<(), Error> {
        path_parts(path).map_err(Error::Path)?;
        match self.tree.unlink(path.as_bytes()) {
            Err(Errno::ISDIR | Errno::PERM) => match self.tree.rmdir(path.as_bytes()) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => Err(Error::Kind),
                other => other.map_err(from_errno),
            },
            other => other.map_err(from_errno),
        }
    }

    /// Lists everything below the area, sorted by path, except Snakemake's own directory. Also
    /// returns whether the list is complete.
    pub fn list(&self) -> Result<(Vec<Listed>, bool), Error> {
        let mut found = Vec::new();
        let top = openat(self.tree.root(), c".", DIRECTORY, Mode::empty()).map_err(from_errno)?;
        let all = self.walk(&top, "", 0, &mut found)?;
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok((found, all))
    }

    fn walk(
        &self,
        dir: &OwnedFd,
        before: &str,
        depth: usize,
        found: &mut Vec<Listed>,
    ) -> Result<bool, Error> {
        let mut all = true;
        let mut inner = Vec::new();
        for entry in Dir::read_from(dir).map_err(from_errno)? {
            let entry = entry.map_err(from_errno)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == "." || name == ".." || (depth == 0 && name == ".snakemake") {
                continue;
            }
            if found.len() >= MAX_LISTED_FILES {
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
                // The directory was removed, or the user may not read it.
                Err(_) => all = false,
            }
        }
        Ok(all)
    }
}

fn below(dir: impl AsFd, part: &str) -> Result<OwnedFd, Error> {
    openat(dir, part, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()).map_err(from_errno)
}

fn receive(mut to: File, from: &mut dyn Read, size: u64) -> Result<(), Error> {
    let mut left = size;
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let most = piece.len().min(left.try_into().unwrap_or(usize::MAX));
        let got = from.read(&mut piece[..most]).map_err(Error::Sender)?;
        if got == 0 {
            return Err(Error::Sender(io::ErrorKind::UnexpectedEof.into()));
        }
        io::Write::write_all(&mut to, &piece[..got]).map_err(Error::System)?;
        left -= got as u64;
    }
    to.sync_all().map_err(Error::System)
}

fn from_errno(e: Errno) -> Error {
    match e {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Error::Absent,
        Errno::NXIO => Error::Kind,
        e => Error::System(e.into()),
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
        assert!(matches!(put("dir/x"), Err(Error::Absent)));
        assert!(matches!(put("../out/x"), Err(Error::Path(_))));
        assert!(matches!(put("a/b"), Err(Error::Kind)), "a directory stays");
        // `put` replaces the link rather than following it.
        assert!(matches!(area.get("d/file"), Err(Error::Absent)));
        put("d/file").unwrap();
        assert_eq!(fs::read(outside.join("secret")).unwrap(), b"s");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert!(matches!(area.get("dir/secret"), Err(Error::Absent)));
        assert!(matches!(area.get("d"), Err(Error::Kind)));
        assert!(matches!(area.remove("dir/secret"), Err(Error::Absent)));
        assert!(matches!(area.remove("d"), Err(Error::Kind)));
        // If bytes are missing, no file is left.
        let short = area.put("short", &mut "ab".as_bytes(), 3);
        assert!(matches!(short, Err(Error::Sender(_))));
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
