//! `forebay rm` and `mkdir`.

use super::session::{Session, base_name, trimmed};
use super::walk::{Node, Visitor, walk};
use crate::fail::Fail;
use crate::file_args::{Mkdir, Rm};
use forebay_posix::{Errno, umask};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

const WHAT: &str = "can't be removed";

pub fn rm(name: &str, a: &Rm) -> Result<u8, Fail> {
    let session = Session::open(name)?;
    for written in &a.paths {
        remove(&session, a, written);
    }
    Ok(session.end())
}

fn remove(session: &Session, a: &Rm, written: &OsStr) {
    let shown = written.as_bytes();
    let path = session.path(written);
    match base_name(&path) {
        b"" => {
            let what = "is the root of the pool; forebay down removes the pool";
            return session.complain(shown, what);
        }
        b"." | b".." => {
            let what = "can't be removed by this name; write the directory's own";
            return session.complain(shown, what);
        }
        _ => {}
    }
    // A `/` at the end of a link's path would lead to what the link names.
    let found = Node::start(&session.fs, shown, trimmed(&path).to_vec(), false);
    match found {
        Err(Errno::NOENT | Errno::NOTDIR) if a.force => {}
        Err(e) => session.complain_errno(shown, WHAT, e),
        Ok(node) if !node.is_dir() && path.ends_with(b"/") => {
            session.complain_errno(shown, WHAT, Errno::NOTDIR);
        }
        Ok(node) if node.is_dir() && !a.recursive => {
            session.complain(shown, "is a directory; remove it with: forebay rm -r");
        }
        Ok(node) => _ = remove_tree(session, node),
    }
}

/// Removes an object and all below it. Names what can't be removed; true: all is gone.
pub fn remove_tree(session: &Session, start: Node) -> bool {
    let mut remover = Remover {
        session,
        kept: vec![false],
    };
    walk(&session.fs, start, &mut remover);
    !remover.kept[0]
}

struct Remover<'a> {
    session: &'a Session,
    /// For each directory above, whether something in it stays.
    kept: Vec<bool>,
}

impl Remover<'_> {
    fn keep(&mut self, node: &Node, what: &str, e: Errno) {
        self.session.complain_errno(&node.shown, what, e);
        self.note();
    }

    fn note(&mut self) {
        if let Some(kept) = self.kept.last_mut() {
            *kept = true;
        }
    }
}

impl Visitor for Remover<'_> {
    fn enter(&mut self, _: &Node) -> bool {
        self.kept.push(false);
        true
    }

    fn leave(&mut self, directory: &Node) {
        // A directory in which something stays stays, too: one message is enough.
        if self.kept.pop() == Some(true) {
            return self.note();
        }
        let fs = &self.session.fs;
        match directory.at(fs, |place| fs.remove_dir(place)) {
            Ok(()) => self.session.tell("removed", &directory.shown),
            Err(Errno::NOENT) => {}
            Err(e) => self.keep(directory, WHAT, e),
        }
    }

    fn file(&mut self, file: &Node) {
        let fs = &self.session.fs;
        match file.at(fs, |place| fs.remove_file(place)) {
            // Another process was faster.
            Err(Errno::NOENT) if file.depth > 0 => {}
            Err(e) => self.keep(file, WHAT, e),
            Ok(()) => self.session.tell("removed", &file.shown),
        }
    }

    fn unlisted(&mut self, directory: &Node, e: Errno) {
        self.keep(directory, "can't be listed", e);
    }
}

pub fn mkdir(name: &str, a: &Mkdir) -> Result<u8, Fail> {
    let session = Session::open(name)?;
    let mode = 0o777 & !umask();
    for written in &a.paths {
        let path = session.path(written);
        let made = match a.parents {
            true => make_parents(&session, &path, mode),
            false => session.fs.mkdir(&path, mode),
        };
        match made {
            Ok(()) => session.tell("made", written.as_bytes()),
            Err(e) => session.complain_errno(written.as_bytes(), "can't be made", e),
        }
    }
    Ok(session.end())
}

/// Makes a directory and the missing ones above it.
fn make_parents(session: &Session, path: &[u8], mode: u32) -> forebay_posix::Result<()> {
    let path = trimmed(path);
    let ends = (1..path.len()).filter(|&i| path[i] == b'/' && path[i - 1] != b'/');
    for end in ends.chain([path.len()]) {
        let part = &path[..end];
        let is_last = end == path.len();
        let mode = if is_last { mode } else { mode | 0o300 };
        match session.fs.mkdir(part, mode) {
            Ok(()) => {}
            // The file system may refuse to make what is there already for other reasons, too.
            Err(e) => match session.fs.stat(part, true) {
                Ok(stat) if stat.mode & libc::S_IFMT == libc::S_IFDIR => {}
                Ok(_) if is_last => return Err(Errno::EXIST),
                Ok(_) => return Err(Errno::NOTDIR),
                Err(Errno::NOENT) => return Err(e),
                Err(other) => return Err(other),
            },
        }
    }
    Ok(())
}
