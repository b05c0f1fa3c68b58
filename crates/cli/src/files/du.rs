//! `forebay du`: the room that trees take. Several names of one file count once.

use super::session::Session;
use super::shown::{human, printable};
use super::walk::{Node, Visitor, walk};
use crate::fail::Fail;
use crate::file_args::Du;
use crate::output::{json, write};
use forebay_posix::{Errno, Stat};
use serde_json::{Value, json as value};
use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

pub fn du(name: &str, a: &Du) -> Result<u8, Fail> {
    let session = Session::open(name)?;
    let mut sums = Sums {
        session: &session,
        options: a,
        open: Vec::new(),
        counted: HashSet::new(),
        lines: Vec::new(),
    };
    let root = [OsString::from("/")];
    let wanted = if a.paths.is_empty() {
        &root[..]
    } else {
        &a.paths[..]
    };
    let mut reports: Vec<Value> = Vec::new();
    for written in wanted {
        let shown = written.as_bytes();
        match Node::start(&session.fs, shown, session.path(written), false) {
            Err(e) => session.complain_errno(shown, "can't be measured", e),
            Ok(node) => walk(&session.fs, node, &mut sums),
        }
        let lines = std::mem::take(&mut sums.lines);
        if a.json {
            reports.extend(lines.iter().map(as_json));
            continue;
        }
        let text: Vec<Vec<u8>> = lines.iter().map(|line| in_words(line, a)).collect();
        write(&text.concat())?;
    }
    if a.json {
        json(&reports)?;
    }
    Ok(session.end())
}

/// Room, and sizes. Bytes.
#[derive(Clone, Copy, Default)]
struct Sum {
    used: u64,
    size: u64,
}

struct Line {
    path: Vec<u8>,
    sum: Sum,
}

fn as_json(line: &Line) -> Value {
    let path = String::from_utf8_lossy(&line.path);
    value!({ "path": path, "used": line.sum.used, "size": line.sum.size })
}

fn in_words(line: &Line, a: &Du) -> Vec<u8> {
    let bytes = if a.bytes {
        line.sum.size
    } else {
        line.sum.used
    };
    let number = match (a.human, a.bytes) {
        (true, _) => human(bytes),
        (false, true) => bytes.to_string(),
        (false, false) => bytes.div_ceil(1024).to_string(),
    };
    let mut text = number.into_bytes();
    text.push(b'\t');
    text.extend(printable(&line.path));
    text.push(b'\n');
    text
}

struct Sums<'a> {
    session: &'a Session,
    options: &'a Du,
    /// The directories above, each with what was found in it.
    open: Vec<Sum>,
    /// Files with several names.
    counted: HashSet<u64>,
    lines: Vec<Line>,
}

impl Sums<'_> {
    fn own(&mut self, node: &Node) -> Sum {
        match node.stat(&self.session.fs) {
            Ok(stat) => self.count(&stat),
            // Removed since it was listed.
            Err(Errno::NOENT) => Sum::default(),
            Err(e) => {
                self.session
                    .complain_errno(&node.shown, "can't be measured", e);
                Sum::default()
            }
        }
    }

    fn count(&mut self, stat: &Stat) -> Sum {
        let is_dir = stat.mode & libc::S_IFMT == libc::S_IFDIR;
        if !is_dir && stat.nlink > 1 && !self.counted.insert(stat.ino) {
            return Sum::default();
        }
        Sum {
            used: stat.blocks * 512,
            size: stat.size,
        }
    }

    fn add(&mut self, node: &Node, sum: Sum) {
        if let Some(above) = self.open.last_mut() {
            above.used += sum.used;
            above.size += sum.size;
        }
        let deepest = match self.options.summarize {
            true => 0,
            false => self.options.depth.unwrap_or(usize::MAX),
        };
        let is_wanted = node.depth == 0 || node.is_dir() || self.options.all;
        if is_wanted && node.depth <= deepest {
            self.lines.push(Line {
                path: node.shown.clone(),
                sum,
            });
        }
    }
}

impl Visitor for Sums<'_> {
    fn enter(&mut self, node: &Node) -> bool {
        let own = self.own(node);
        self.open.push(own);
        true
    }

    fn leave(&mut self, node: &Node) {
        let sum = self.open.pop().unwrap_or_default();
        self.add(node, sum);
    }

    fn file(&mut self, node: &Node) {
        let own = self.own(node);
        self.add(node, own);
    }

    fn unlisted(&mut self, directory: &Node, e: Errno) {
        self.session
            .complain_errno(&directory.shown, "can't be listed", e);
    }
}
