//! `forebay ls`: lists files, in the manner of coreutils.

use super::shown::{
    coloured, group_name, human, join, kind_word, mode_text, printable, time_text, user_name,
};
use crate::fail::{Fail, code};
use crate::file_args::Ls;
use crate::output::{json, print_notice, write};
use crate::paths::in_pool;
use forebay_backing::pool_time;
use forebay_client::Pool;
use forebay_posix::{Errno, Fs, Stat};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One line of a listing.
struct Row {
    name: Vec<u8>,
    stat: Stat,
    target: Option<Vec<u8>>,
    /// Whether only the origin has the file.
    is_origin_only: bool,
}

struct Lister<'a> {
    fs: &'a Fs,
    options: &'a Ls,
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
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
        // A link to a directory is shown as that directory, unless the link's own attributes are
        // wanted.
        let follow = !a.long && !a.directory;
        match fs.stat(&path, follow).or_else(|_| fs.stat(&path, false)) {
            Ok(s) if is_dir(&s) && !a.directory => {
                directories.push((written.as_bytes().to_vec(), path, s));
            }
            Ok(stat) => {
                let target = lister.target(&path, &stat);
                files.push(Row {
                    name: written.as_bytes().to_vec(),
                    stat,
                    target,
                    is_origin_only: false,
                });
            }
            Err(e) => lister.complain(written.as_bytes(), e),
        }
    }
    files.sort_by(|x, y| order(a, (&x.name, &x.stat), (&y.name, &y.stat)));
    directories.sort_by(|x, y| order(a, (&x.0, &x.2), (&y.0, &y.2)));
    let titled = a.recursive || files.len() + directories.len() > 1 || wanted.len() > 1;
    let mut first = files.is_empty();
    if !files.is_empty() {
        lister.rows(files, None)?;
    }
    for (title, path, _) in directories {
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

/// Compares two entries, each a name and attributes, in the order that the options choose.
fn order(a: &Ls, x: (&[u8], &Stat), y: (&[u8], &Stat)) -> Ordering {
    let by_name = x.0.cmp(y.0);
    let order = match (a.by_time, a.by_size) {
        (true, _) => y.1.mtime.cmp(&x.1.mtime).then(by_name),
        (_, true) => y.1.size.cmp(&x.1.size).then(by_name),
        _ => by_name,
    };
    if a.reverse { order.reverse() } else { order }
}

fn is_dir(s: &Stat) -> bool {
    s.mode & libc::S_IFMT == libc::S_IFDIR
}

fn of_kernel(m: &Metadata) -> Stat {
    let time =
        |seconds: i64, rest: i64| pool_time(i128::from(seconds) * 1_000_000_000 + i128::from(rest));
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

impl Lister<'_> {
    fn complain(&mut self, path: &[u8], e: Errno) {
        self.failed = true;
        let why = match e {
            Errno::XDEV => "it is at the origin only, by its mode off".to_owned(),
            e => forebay_backing::explain(e),
        };
        let path = String::from_utf8_lossy(path);
        print_notice(format!("{path}: {why} in this pool"));
    }

    /// Returns the path at the origin of a file that only the origin has, if it is known.
    fn at_origin(&self, path: &[u8]) -> Option<PathBuf> {
        let origin = self.fs.pool().config().origin.as_ref()?;
        let relative = OsStr::from_bytes(origin.relative(path)?);
        Some(Path::new(&origin.path).join(relative))
    }

    /// Returns the attributes of an entry, and whether only the origin has it: then the attributes
    /// are the origin's.
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

    /// Lists a directory, with `-R` also the directories below it.
    fn directory(
        &mut self,
        title: Vec<u8>,
        path: Vec<u8>,
        titled: bool,
        first: &mut bool,
    ) -> Result<(), Fail> {
        let mut pending = vec![(title, path)];
        while let Some((title, path)) = pending.pop() {
            let mut entries = Vec::new();
            if let Err(e) = self.fs.list_into(&path, &mut entries) {
                self.complain(&title, e);
                if entries.is_empty() {
                    continue;
                }
            }
            let mut names: Vec<Vec<u8>> = entries
                .into_iter()
                .map(|e| e.name)
                .filter(|n| self.options.all || !n.starts_with(b"."))
                .filter(|n| n != b"." && n != b"..")
                .collect();
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
                    Ok((stat, is_origin_only)) => rows.push(Row {
                        target: self.target(&full, &stat),
                        name,
                        stat,
                        is_origin_only,
                    }),
                    // The entry was removed after it was listed.
                    Err(Errno::NOENT) => {}
                    Err(e) => self.complain(&full, e),
                }
            }
            let options = self.options;
            rows.sort_by(|x, y| order(options, (&x.name, &x.stat), (&y.name, &y.stat)));
            if self.options.recursive {
                let below = rows.iter().rev().filter(|r| {
                    is_dir(&r.stat) && !r.is_origin_only && r.name != b"." && r.name != b".."
                });
                pending.extend(below.map(|r| (join(&title, &r.name), join(&path, &r.name))));
            }
            if titled && !self.options.json {
                let gap: &[u8] = if *first { b"" } else { b"\n" };
                write(&[gap, &printable(&title), b":\n"].concat())?;
            }
            *first = false;
            self.rows(rows, Some(&path))?;
        }
        Ok(())
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
                text.extend(coloured(&r.name, r.stat.mode));
                text.push(b'\n');
            }
            return write(&text);
        }
        if directory.is_some() {
            let blocks: u64 = rows.iter().map(|r| r.stat.blocks).sum();
            let total = if self.options.human {
                human(blocks * 512)
            } else {
                blocks.div_ceil(2).to_string()
            };
            text.extend(format!("total {total}\n").bytes());
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
            text.extend(coloured(&r.name, r.stat.mode));
            if let Some(target) = &r.target {
                text.extend(b" -> ");
                text.extend(printable(target));
            }
            text.push(b'\n');
        }
        write(&text)
    }

    /// Returns the cells of a long row: links, owner, group, and size or device number.
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
            _ if self.options.human => human(s.size),
            _ => s.size.to_string(),
        };
        [s.nlink.to_string(), user, group, size]
    }
}
