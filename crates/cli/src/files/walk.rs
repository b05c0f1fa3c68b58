//! Walks over trees in a pool: for rm, cp, du and find.
//!
//! Guarantees: symbolic links are never followed below the start. Each object is reached from its
//! directory's id, so a directory that another process replaces by a link meanwhile leads nowhere
//! else, and paths may be longer than PATH_MAX. Entries are visited in the order of their names.
//! Depth costs memory only, no stack.

use super::session::join;
use forebay_posix::{DirEntry, Errno, Fail, File, Follow, Fs, ObjectId, Place, Result, Stat};

/// An object on a walk.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its path as the user wrote it, with the names below.
    pub shown: Vec<u8>,
    /// The directory from which `name` is resolved.
    pub base: ObjectId,
    /// A name; of the start, a path.
    pub name: Vec<u8>,
    pub id: ObjectId,
    /// Type bits of the mode (S_IFMT).
    pub kind: u32,
    /// Names below the start.
    pub depth: usize,
}

impl Node {
    /// The start of a walk at `path`.
    ///
    /// # Errors
    /// As lstat(2), or with `follow` as stat(2).
    pub fn start(fs: &Fs, shown: &[u8], path: Vec<u8>, follow: bool) -> Result<Node> {
        let follow = if follow { Follow::Yes } else { Follow::No };
        let entry = errno(fs.at(ObjectId::ROOT, &path, follow, Place::existing))?;
        Ok(Node {
            shown: shown.to_vec(),
            base: ObjectId::ROOT,
            name: path,
            id: entry.id,
            kind: entry.kind,
            depth: 0,
        })
    }

    /// Calls `f` with its place, without following a link.
    ///
    /// # Errors
    /// Those of resolving its name, and of `f`.
    pub fn at<T>(&self, fs: &Fs, f: impl FnMut(&Place) -> Result<T>) -> Result<T> {
        errno(fs.at(self.base, &self.name, Follow::No, f))
    }

    /// Its attributes.
    ///
    /// # Errors
    /// As lstat(2).
    pub fn stat(&self, fs: &Fs) -> Result<Stat> {
        self.at(fs, |place| fs.stat_place(place))
    }

    pub fn is_dir(&self) -> bool {
        self.kind == libc::S_IFDIR
    }

    /// Its entries, sorted backwards: the last one comes first.
    fn entries(&self, fs: &Fs) -> Result<Vec<DirEntry>> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let open = errno(fs.open_at(self.base, &self.name, flags, 0))?;
        let mut entries = File::new(fs, open).entries()?;
        entries.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        Ok(entries)
    }
}

/// An errno of a path that must lie in the pool.
///
/// # Errors
/// EXDEV for one that leads out of it.
pub fn errno<T>(result: std::result::Result<T, Fail>) -> Result<T> {
    result.map_err(|e| match e {
        Fail::Errno(e) => e,
        Fail::Outside(_) | Fail::Origin(_) => Errno::XDEV,
    })
}

/// Called for each object of a tree.
pub trait Visitor {
    /// A directory, before its content. False: neither its content nor [`Visitor::leave`] follows.
    fn enter(&mut self, directory: &Node) -> bool;
    /// A directory, after its content.
    fn leave(&mut self, directory: &Node);
    /// Anything else.
    fn file(&mut self, file: &Node);
    /// A directory whose content can't be listed; `leave` follows.
    fn unlisted(&mut self, directory: &Node, e: Errno);
}

/// Visits `start` and all below it.
pub fn walk(fs: &Fs, start: Node, visitor: &mut impl Visitor) {
    let mut open: Vec<(Node, Vec<DirEntry>)> = Vec::new();
    let mut next = Some(start);
    loop {
        if let Some(node) = next.take() {
            if !node.is_dir() {
                visitor.file(&node);
            } else if visitor.enter(&node) {
                let entries = node.entries(fs).unwrap_or_else(|e| {
                    visitor.unlisted(&node, e);
                    Vec::new()
                });
                open.push((node, entries));
            }
        }
        let Some((above, left)) = open.last_mut() else {
            return;
        };
        next = left.pop().map(|entry| Node {
            shown: join(&above.shown, &entry.name),
            base: above.id,
            name: entry.name,
            id: ObjectId(entry.ino),
            kind: entry.kind,
            depth: above.depth + 1,
        });
        if next.is_none()
            && let Some((done, _)) = open.pop()
        {
            visitor.leave(&done);
        }
    }
}
