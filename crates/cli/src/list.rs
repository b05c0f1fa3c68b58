//! `forebay ls` and `cat`, in the manner of coreutils.

use crate::args::Ls;
use crate::fail::{Fail, code};
use crate::output::{json, say, write};
use crate::paths::in_pool;
use forebay_client::Pool;
use forebay_posix::{Errno, Fs, Stat};
use std::collections::HashMap;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::Metadata;
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One line of a listing.
struct Row {
    name: Vec<u8>,
    stat: Stat,
    target: Option<Vec<u8>>,
    /// At the origin only.
    is_outer: bool,
}

struct Lister<'a> {
    fs: &'a Fs,
    options: &'a Ls,
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
    terminal: bool,
    now: i64,
    failed: bool,
    json: Vec<serde_json::Value>,
}

pub fn ls(name: &str, a: &Ls) -> Result<u8, Fail> {
    let pool = Arc::new(Pool::open(name)?);
    let fs = Fs::new(pool.clone());
    let mut lister = Lister {
        fs: &fs,
        options: a,
        users: HashMap::new(),
        groups: HashMap::new(),
        terminal: std::io::stdout().is_terminal(),
        now: std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs() as i64),
        failed: false,
        json: Vec::new(),
    };
    let root = [OsString::from("/")];
    let wanted = if a.paths.is_empty() {
        &root[..]
    } else {
        &a.paths[..]
    };
    let (mut files, mut directories) = (Vec::new(), Vec::new());
    for written in wanted {
        let path = in_pool(written, &pool);
        // A link to a directory is listed as the directory, unless its own attributes are wanted.
        match fs.stat(&path, !a.long).or_else(|_| fs.stat(&path, false)) {
            Ok(s) if is_dir(&s) => directories.push((written.as_bytes().to_vec(), path)),
            Ok(stat) => {
                let target = lister.target(&path, &stat);
                files.push(Row {
                    name: written.as_bytes().to_vec(),
                    stat,
                    target,
                    is_outer: false,
                });
            }
            Err(e) => lister.complain(written.as_bytes(), e),
        }
    }
    let titled = a.recursive || files.len() + directories.len() > 1 || wanted.len() > 1;
    let mut first = files.is_empty();
    if !files.is_empty() {
        lister.rows(files, None)?;
    }
    for (title, path) in directories {
        lister.directory(title, path, titled, &mut first)?;
    }
    if a.json {
        json(&lister.json)?;
    }
    Ok(if lister.failed {
        code::FAILED
    } else {
        code::OK
    })
}

fn is_dir(s: &Stat) -> bool {
    s.mode & libc::S_IFMT == libc::S_IFDIR
}

fn of_kernel(m: &Metadata) -> Stat {
    let time = |seconds: i64, rest: i64| seconds * 1_000_000_000 + rest;
    Stat {
        ino: m.ino(),
        mode: m.mode(),
        nlink: m.nlink() as u32,
        uid: m.uid(),
        gid: m.gid(),
        rdev: m.rdev(),
        size: m.size(),
        blocks: m.blocks(),
        atime: time(m.atime(), m.atime_nsec()),
        mtime: time(m.mtime(), m.mtime_nsec()),
        ctime: time(m.ctime(), m.ctime_nsec()),
        btime: 0,
    }
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
    [directory, slash, name].concat()
}

impl Lister<'_> {
    fn complain(&mut self, path: &[u8], e: Errno) {
        self.failed = true;
        let why = match e {
            Errno::XDEV => "it is at the origin only, by its mode off".to_owned(),
            e => forebay_staging::explain(e),
        };
        let path = String::from_utf8_lossy(path);
        say(format!("{path}: {why} in this pool"));
    }

    /// Where the origin has a file that it alone has, as far as its path is known.
    fn at_origin(&self, path: &[u8]) -> Option<PathBuf> {
        let origin = self.fs.pool().config().origin.as_ref()?;
        let relative = OsStr::from_bytes(origin.relative(path)?);
        Some(Path::new(&origin.path).join(relative))
    }

    /// Attributes of an entry, and whether it is at the origin only: then they are the origin's.
    fn stat(&self, path: &[u8]) -> Result<(Stat, bool), Errno> {
        match self.fs.stat(path, false) {
            Err(Errno::XDEV) => {
                let there = self.at_origin(path).ok_or(Errno::XDEV)?;
                let found = std::fs::symlink_metadata(there);
                let found = found.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
                Ok((of_kernel(&found), true))
            }
            other => other.map(|stat| (stat, false)),
        }
    }

    fn target(&self, path: &[u8], stat: &Stat) -> Option<Vec<u8>> {
        let is_link = stat.mode & libc::S_IFMT == libc::S_IFLNK;
        if is_link {
            let there = || std::fs::read_link(self.at_origin(path)?).ok();
            let of_pool = self.fs.readlink(path).ok();
            of_pool.or_else(|| there().map(|target| target.into_os_string().into_vec()))
        } else {
            None
        }
    }

    /// Lists a directory, and with `-R` those below it.
    fn directory(
        &mut self,
        title: Vec<u8>,
        path: Vec<u8>,
        titled: bool,
        first: &mut bool,
    ) -> Result<(), Fail> {
        let mut pending = vec![(title, path)];
        while let Some((title, path)) = pending.pop() {
            let entries = match self.fs.list(&path) {
                Ok(entries) => entries,
                Err(e) => {
                    self.complain(&title, e);
                    continue;
                }
            };
            let mut names: Vec<Vec<u8>> = entries
                .into_iter()
                .map(|e| e.name)
                .filter(|n| self.options.all || !n.starts_with(b"."))
                .filter(|n| n != b"." && n != b"..")
                .collect();
            names.sort_unstable();
            if self.options.all && !self.options.json {
                names.splice(0..0, [b".".to_vec(), b"..".to_vec()]);
            }
            let mut rows = Vec::new();
            for name in names {
                let full = match name.as_slice() {
                    b".." if path == b"/" => path.clone(),
                    _ => join(&path, &name),
                };
                match self.stat(&full) {
                    Ok((stat, is_outer)) => rows.push(Row {
                        target: self.target(&full, &stat),
                        name,
                        stat,
                        is_outer,
                    }),
                    // Removed since it was listed.
                    Err(Errno::NOENT) => {}
                    Err(e) => self.complain(&full, e),
                }
            }
            if self.options.recursive {
                let below = rows.iter().rev().filter(|r| {
                    is_dir(&r.stat) && !r.is_outer && r.name != b"." && r.name != b".."
                });
                pending.extend(below.map(|r| (join(&title, &r.name), join(&path, &r.name))));
            }
            if titled && !self.options.json {
                let gap: &[u8] = if *first { b"" } else { b"\n" };
                write(&[gap, &self.shown(&title), b":\n"].concat())?;
            }
            *first = false;
            self.rows(rows, Some(&path))?;
        }
        Ok(())
    }

    /// A printable name: on a terminal without control characters.
    fn shown(&self, name: &[u8]) -> Vec<u8> {
        if !self.terminal {
            return name.to_vec();
        }
        let text = String::from_utf8_lossy(name);
        text.chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect::<String>()
            .into()
    }

    fn rows(&mut self, rows: Vec<Row>, directory: Option<&[u8]>) -> Result<(), Fail> {
        if self.options.json {
            for r in rows {
                let path = directory.map_or_else(|| r.name.clone(), |d| join(d, &r.name));
                let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
                self.json.push(serde_json::json!({
                    "path": text(&path), "name": text(&r.name), "mode": r.stat.mode,
                    "type": kind_word(r.stat.mode), "nlink": r.stat.nlink, "uid": r.stat.uid,
                    "gid": r.stat.gid, "size": r.stat.size, "blocks": r.stat.blocks,
                    "atime_ns": r.stat.atime, "mtime_ns": r.stat.mtime, "ctime_ns": r.stat.ctime,
                    "ino": r.stat.ino, "target": r.target.as_deref().map(text),
                }));
            }
            return Ok(());
        }
        let mut text = Vec::new();
        if !self.options.long {
            for r in &rows {
                text.extend(self.shown(&r.name));
                text.push(b'\n');
            }
            return write(&text);
        }
        if directory.is_some() {
            let blocks: u64 = rows.iter().map(|r| r.stat.blocks).sum();
            text.extend(format!("total {}\n", blocks.div_ceil(2)).bytes());
        }
        let cells: Vec<[String; 4]> = rows.iter().map(|r| self.cells(&r.stat)).collect();
        let width = |i: usize| cells.iter().map(|c| c[i].len()).max().unwrap_or(0);
        let w = [width(0), width(1), width(2), width(3)];
        for (r, c) in rows.iter().zip(&cells) {
            let line = format!(
                "{} {:>w0$} {:<w1$} {:<w2$} {:>w3$} {} ",
                mode_text(r.stat.mode),
                c[0],
                c[1],
                c[2],
                c[3],
                time_text(r.stat.mtime.div_euclid(1_000_000_000), self.now),
                w0 = w[0],
                w1 = w[1],
                w2 = w[2],
                w3 = w[3],
            );
            text.extend(line.bytes());
            text.extend(self.shown(&r.name));
            if let Some(target) = &r.target {
                text.extend(b" -> ");
                text.extend(self.shown(target));
            }
            text.push(b'\n');
        }
        write(&text)
    }

    /// Links, owner, group, and size or device number.
    fn cells(&mut self, s: &Stat) -> [String; 4] {
        let user = self
            .users
            .entry(s.uid)
            .or_insert_with(|| user_name(s.uid))
            .clone();
        let group = self
            .groups
            .entry(s.gid)
            .or_insert_with(|| group_name(s.gid))
            .clone();
        let size = match s.mode & libc::S_IFMT {
            libc::S_IFCHR | libc::S_IFBLK => {
                format!("{}, {}", libc::major(s.rdev), libc::minor(s.rdev))
            }
            _ => s.size.to_string(),
        };
        [s.nlink.to_string(), user, group, size]
    }
}

fn kind_word(mode: u32) -> &'static str {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => "directory",
        libc::S_IFLNK => "symlink",
        libc::S_IFIFO => "fifo",
        libc::S_IFSOCK => "socket",
        libc::S_IFCHR => "character device",
        libc::S_IFBLK => "block device",
        _ => "file",
    }
}

/// `drwxr-xr-x`, with set-id and sticky bits.
fn mode_text(mode: u32) -> String {
    let kind = match mode & libc::S_IFMT {
        libc::S_IFDIR => 'd',
        libc::S_IFLNK => 'l',
        libc::S_IFIFO => 'p',
        libc::S_IFSOCK => 's',
        libc::S_IFCHR => 'c',
        libc::S_IFBLK => 'b',
        _ => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, set, bare) in [
        (6, 0o4000, 's', 'S'),
        (3, 0o2000, 's', 'S'),
        (0, 0o1000, 't', 'T'),
    ] {
        let bits = mode >> shift & 7;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => bare,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// `Nov  5 14:03`, or `Nov  5  2023` if that is more than half a year from now.
fn time_text(seconds: i64, now: i64) -> String {
    const HALF_A_YEAR: i64 = 31_556_952 / 2;
    let recent = seconds <= now && seconds > now - HALF_A_YEAR;
    let format = if recent { c"%b %e %H:%M" } else { c"%b %e  %Y" };
    let mut text = [0u8; 64];
    // SAFETY: all pointers are to live, initialised memory of the sizes given.
    let n = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&seconds, &mut parts).is_null() {
            return seconds.to_string();
        }
        libc::strftime(
            text.as_mut_ptr().cast(),
            text.len(),
            format.as_ptr(),
            &parts,
        )
    };
    String::from_utf8_lossy(&text[..n]).into_owned()
}

/// The name of a user; without one, the number.
pub fn user_name(uid: u32) -> String {
    let mut space = [0 as libc::c_char; 4096];
    // SAFETY: the entry's strings lie in `space`, which outlives them.
    unsafe {
        let mut entry: libc::passwd = std::mem::zeroed();
        let mut found = std::ptr::null_mut();
        libc::getpwuid_r(uid, &mut entry, space.as_mut_ptr(), space.len(), &mut found);
        match found.is_null() {
            true => uid.to_string(),
            false => CStr::from_ptr(entry.pw_name).to_string_lossy().into_owned(),
        }
    }
}

fn group_name(gid: u32) -> String {
    let mut space = [0 as libc::c_char; 4096];
    // SAFETY: the entry's strings lie in `space`, which outlives them.
    unsafe {
        let mut entry: libc::group = std::mem::zeroed();
        let mut found = std::ptr::null_mut();
        libc::getgrgid_r(gid, &mut entry, space.as_mut_ptr(), space.len(), &mut found);
        match found.is_null() {
            true => gid.to_string(),
            false => CStr::from_ptr(entry.gr_name).to_string_lossy().into_owned(),
        }
    }
}

pub fn cat(name: &str, paths: &[OsString]) -> Result<u8, Fail> {
    let pool = Arc::new(Pool::open(name)?);
    let fs = Fs::new(pool.clone());
    let mut status = code::OK;
    let mut buffer = vec![0; 1 << 20];
    for written in paths {
        if let Err(e) = print(&fs, &in_pool(written, &pool), &mut buffer)? {
            let what = forebay_staging::explain(e);
            say(format!(
                "{}: {what} in this pool",
                written.to_string_lossy()
            ));
            status = code::FAILED;
        }
    }
    Ok(status)
}

/// Prints one file. The outer error is that of the output, the inner one that of the file.
fn print(fs: &Fs, path: &[u8], buffer: &mut [u8]) -> Result<Result<(), Errno>, Fail> {
    let file = match fs.open(path, libc::O_RDONLY, 0) {
        Ok(file) => file,
        Err(e) => return Ok(Err(e)),
    };
    let mut at = 0;
    loop {
        match file.read_at(buffer, at) {
            Ok(0) => return Ok(Ok(())),
            Ok(n) => {
                write(&buffer[..n])?;
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Ok(Err(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_read_like_ls() {
        assert_eq!(mode_text(0o100_644), "-rw-r--r--");
        assert_eq!(mode_text(0o041_777), "drwxrwxrwt");
        assert_eq!(mode_text(0o104_711), "-rws--x--x");
        assert_eq!(mode_text(0o102_600), "-rw---S---");
        assert_eq!(mode_text(0o120_777), "lrwxrwxrwx");
    }

    #[test]
    fn times_read_like_ls() {
        let now = 1_700_000_000;
        assert!(time_text(now - 60, now).contains(':'));
        assert!(!time_text(now - 40_000_000, now).contains(':'));
        assert!(!time_text(now + 60, now).contains(':'));
    }
}
