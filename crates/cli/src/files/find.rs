//! `forebay find`: lists the paths below directories, by name and type.
//!
//! Symbolic links are never followed below the start. Each object is reached by its directory's id.
//! So if another process replaces a directory by a link, the search doesn't follow the link, and
//! paths may be longer than PATH_MAX. Entries are visited in the order of their names. The depth of
//! a tree costs memory, but no stack.

use super::shown::{join, kind_word, printable};
use crate::fail::{Fail, code};
use crate::file_args::Find;
use crate::found;
use crate::output::{count, json, print_notice, write};
use crate::paths::in_pool;
use forebay_client::controls::Pattern;
use forebay_posix::{self as posix, Errno, File, Follow, Fs, ObjectId, Place};
use serde_json::{Value, json as value};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// How much text is collected before it is printed. Bytes.
const BATCH_BYTES: usize = 64 << 10;

pub fn find(name: &str, a: &Find) -> Result<u8, Fail> {
    let pattern = a.name.as_deref().map(pattern).transpose()?;
    let pool = found::open_reaching(name)?;
    let fs = Fs::new(pool.clone());
    let mut finder = Finder {
        fs: &fs,
        options: a,
        pattern,
        text: Vec::new(),
        found: Vec::new(),
        failed: false,
        cut_off: Vec::new(),
    };
    let root = [OsString::from("/")];
    let wanted = if a.paths.is_empty() {
        &root[..]
    } else {
        &a.paths[..]
    };
    for written in wanted {
        let shown = written.as_bytes();
        match Node::start(&fs, shown, in_pool(written, &pool)) {
            Err(e) => finder.complain(shown, "can't be searched", e),
            Ok(node) => finder.search(node)?,
        }
    }
    finder.tell_what_is_cut_off();
    if a.json {
        json(&finder.found)?;
    } else {
        write(&finder.text)?;
    }
    let failed = finder.failed;
    let _ = fs.store().recovery().detach();
    Ok(if failed { code::FAILED } else { code::OK })
}

/// Parses a pattern for names of entries.
fn pattern(glob: &str) -> Result<Pattern, Fail> {
    let bad = |what: &str| Fail::usage(format!("--name '{glob}': {what}"));
    if glob.is_empty() || glob.contains('/') {
        return Err(bad("a name has at least one character, and no /"));
    }
    Pattern::parse(&format!("/{glob}")).map_err(|e| bad(&e.message))
}

/// An object that the search visits.
struct Node {
    /// The path to print: the start as the user wrote it, and the names below.
    shown: Vec<u8>,
    /// The directory from which `name` is resolved.
    base: ObjectId,
    /// Name of the object in `base`; for the start, its path.
    name: Vec<u8>,
    id: ObjectId,
    /// Type bits of the mode (S_IFMT).
    kind: u32,
    /// Number of names between the start and this object.
    depth: usize,
}

impl Node {
    /// Returns the start of a search at `path`.
    ///
    /// # Errors
    /// As lstat(2); EXDEV if the path leads out of the pool.
    fn start(fs: &Fs, shown: &[u8], path: Vec<u8>) -> posix::Result<Node> {
        let entry = fs
            .resolver()
            .at(ObjectId::ROOT, &path, Follow::No, Place::existing);
        let entry = entry.map_err(errno)?;
        Ok(Node {
            shown: shown.to_vec(),
            base: ObjectId::ROOT,
            name: path,
            id: entry.id,
            kind: entry.kind,
            depth: 0,
        })
    }

    /// Appends the objects in this directory in reverse order, since the last one is visited first.
    /// Appends those that could be read, even if an error is returned for others.
    ///
    /// # Errors
    /// As open(2) and getdents(2); EXDEV if the path leads out of the pool.
    fn entries_into(&self, fs: &Fs, nodes: &mut Vec<Node>) -> posix::Result<()> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let open = fs.open_at(self.base, &self.name, flags, 0).map_err(errno)?;
        let mut entries = Vec::new();
        let listed = File::new(fs, open).entries_into(&mut entries);
        entries.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        nodes.extend(entries.into_iter().map(|entry| Node {
            shown: join(&self.shown, &entry.name),
            base: self.id,
            name: entry.name,
            id: ObjectId(entry.ino),
            kind: entry.kind,
            depth: self.depth + 1,
        }));
        listed
    }
}

/// Returns the errno of a failure at a path: EXDEV if the path leads out of the pool.
fn errno(fail: posix::Fail) -> Errno {
    match fail {
        posix::Fail::Errno(e) => e,
        posix::Fail::Outside(_) | posix::Fail::Origin(_) => Errno::XDEV,
    }
}

struct Finder<'a> {
    fs: &'a Fs,
    options: &'a Find,
    pattern: Option<Pattern>,
    text: Vec<u8>,
    found: Vec<Value>,
    failed: bool,
    /// Paths of directories that nodes which don't answer keep, or entries of which they keep.
    cut_off: Vec<Vec<u8>>,
}

impl Finder<'_> {
    /// Visits `start` and all entries below it.
    ///
    /// # Errors
    /// If the output can't be written: that ends the search.
    fn search(&mut self, start: Node) -> Result<(), Fail> {
        let mut pending = vec![start];
        while let Some(node) = pending.pop() {
            self.look(&node)?;
            let is_entered = self.options.depth.is_none_or(|most| node.depth < most);
            if node.kind != libc::S_IFDIR || !is_entered {
                continue;
            }
            if let Err(e) = node.entries_into(self.fs, &mut pending) {
                self.complain(&node.shown, "can't be listed", e);
            }
        }
        Ok(())
    }

    fn look(&mut self, node: &Node) -> Result<(), Fail> {
        let types = &self.options.types;
        if !types.is_empty() && !types.iter().any(|t| t.bits() == node.kind) {
            return Ok(());
        }
        if let Some(p) = &self.pattern
            && !p.matches(p.below(p.root(), base_name(&node.name)))
        {
            return Ok(());
        }
        if self.options.json {
            let path = String::from_utf8_lossy(&node.shown);
            let found = value!({ "path": path, "type": kind_word(node.kind) });
            self.found.push(found);
            return Ok(());
        }
        if self.options.print0 {
            self.text.extend([&node.shown[..], b"\0"].concat());
        } else {
            let line = [&printable(&node.shown)[..], b"\n"].concat();
            self.text.extend(line);
        }
        if self.text.len() > BATCH_BYTES {
            write(&self.text)?;
            self.text.clear();
        }
        Ok(())
    }

    /// Prints one line for all directories that dead nodes cut off. The first request to a node that
    /// doesn't answer has named it.
    fn tell_what_is_cut_off(&self) {
        if let Some(first) = self.cut_off.first() {
            print_notice(format!(
                "{} couldn't be listed completely, because a node doesn't answer; the first is {}",
                count(self.cut_off.len() as u64, "directory"),
                String::from_utf8_lossy(first)
            ));
        }
    }

    /// Prints a path that failed, and why.
    fn complain(&mut self, path: &[u8], what: &str, e: Errno) {
        self.failed = true;
        if e == Errno::HOSTDOWN {
            self.cut_off.push(path.to_vec());
            return;
        }
        let why = match e {
            Errno::XDEV => "it leads out of the pool, or is at the origin only".into(),
            e => forebay_backing::explain(e),
        };
        print_notice(format!("{}: {what}: {why}", String::from_utf8_lossy(path)));
    }
}

/// Returns the last name of a path, without slashes; `/` for the root.
fn base_name(path: &[u8]) -> &[u8] {
    let mut names = path.split(|&b| b == b'/').rev();
    names.find(|name| !name.is_empty()).unwrap_or(b"/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_paths() {
        for (path, name) in [
            ("/", "/"),
            ("//", "/"),
            ("/a", "a"),
            ("/a/b//", "b"),
            ("a/", "a"),
            ("", "/"),
        ] {
            assert_eq!(base_name(path.as_bytes()), name.as_bytes());
        }
    }
}
