//! The view by attributes: directories under `/.by` that list files by what they have.
//!
//! ```text
//! /.by/                       the keys of user attributes that occur in the pool
//! /.by/KEY/                   its values
//! /.by/KEY=VALUE/             links to the files and directories that have it
//! /.by/KEY=VALUE/KEY=VALUE/   to those that have both; KEY/VALUE means the same
//! ```
//!
//! Nothing of this is stored but the paths of directories that somebody has looked up ('W' records, on the
//! node where that was), by which their ids lead back to what they list. What a directory lists is asked
//! of the index each time ([`crate::index`]); so is whether a name is there. Links are relative, so they
//! lead to the same file wherever the pool is seen. A link has the file's name; where several would have
//! the same, each has `~` and its object's number behind it, by which any can be found.

use crate::index::hash_of;
use crate::record::{Key, Mark, Word, tail};
use crate::shards::Need;
use crate::{DirPosition, Entry, Inode, NAME_MAX, ObjectId, Store, now};
use forebay_placement::{BY, MAX_DEPTH};
use rustix::io::{Errno, Result};
use std::sync::OnceLock;

/// The view's name in the root.
const NAME: &[u8] = b".by";
/// What is asked of the index at once.
const PAGE: usize = 512;

/// A directory of the view.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct View {
    /// From the view's root on, without a slash before or behind it.
    path: Vec<u8>,
    depth: usize,
    /// What all that it lists have.
    words: Vec<Word>,
    /// A key whose value comes next.
    key: Option<Vec<u8>>,
}

/// Whether bytes can't stand in a name as they are.
fn is_escaped(byte: u8, in_key: bool) -> bool {
    matches!(byte, b'/' | b'%' | 0) || in_key && byte == b'='
}

fn escaped(bytes: &[u8], in_key: bool) -> Vec<u8> {
    let dots = matches!(bytes, b"." | b"..");
    let mut text = Vec::with_capacity(bytes.len());
    for &byte in bytes {
        match dots || is_escaped(byte, in_key) {
            true => text.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            false => text.push(byte),
        }
    }
    text
}

fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    Some(bytes)
}

/// A key as it is written in a path.
pub(crate) fn written_key(key: &[u8]) -> Vec<u8> {
    escaped(key, true)
}

/// The value of a word as it is written in a path: by its hash, if it is too long for a name.
pub(crate) fn written_value(value: &[u8], word: Word) -> Vec<u8> {
    let text = match value {
        b"" => b"%".to_vec(),
        value if value.len() <= NAME_MAX => escaped(value, false),
        _ => Vec::new(),
    };
    match text.len() {
        1..=NAME_MAX => text,
        _ => format!("%#{:016x}", word.value).into_bytes(),
    }
}

/// A key with a value that is written so.
fn word(key: &[u8], value: &[u8]) -> Option<Word> {
    if let Some(hash) = value.strip_prefix(b"%#") {
        let digits = std::str::from_utf8(hash).ok().filter(|d| d.len() == 16)?;
        let value = u64::from_str_radix(digits, 16).ok()?;
        let key = hash_of(key);
        return Some(Word { key, value });
    }
    let value = match value {
        b"%" => Vec::new(),
        text => unescaped(text)?,
    };
    Some(Word::new(key, &value))
}

impl View {
    /// The directory `name` in this one, if it could be one.
    fn inner(&self, name: &[u8]) -> Option<View> {
        let mut inner = self.clone();
        if !inner.path.is_empty() {
            inner.path.push(b'/');
        }
        inner.path.extend_from_slice(name);
        inner.depth += 1;
        let equals = name.iter().position(|&b| b == b'=');
        match (inner.key.take(), equals) {
            (Some(key), _) => inner.words.push(word(&key, name)?),
            (None, Some(at)) => {
                let key = unescaped(&name[..at]).filter(|key| !key.is_empty())?;
                inner.words.push(word(&key, &name[at + 1..])?);
            }
            (None, None) => inner.key = Some(unescaped(name).filter(|key| !key.is_empty())?),
        }
        (inner.depth <= MAX_DEPTH).then_some(inner)
    }

    /// The directory of this path.
    fn of_path(path: &[u8]) -> Option<View> {
        let mut names = path.split(|&b| b == b'/').filter(|name| !name.is_empty());
        names.try_fold(View::default(), |view, name| view.inner(name))
    }

    fn id(&self) -> ObjectId {
        match self.path.is_empty() {
            true => BY,
            false => ObjectId::view_dir(hash_of(&self.path)),
        }
    }

    /// The path of its parent, and its name there.
    fn split(&self) -> (&[u8], &[u8]) {
        match self.path.iter().rposition(|&b| b == b'/') {
            Some(at) => (&self.path[..at], &self.path[at + 1..]),
            None => (b"", &self.path),
        }
    }

    fn lists_files(&self) -> bool {
        !self.words.is_empty() && self.key.is_none()
    }
}

/// Whether the path of a directory of the view is one that has this id.
pub(crate) fn is_path_of(id: ObjectId, path: &[u8]) -> bool {
    View::of_path(path).is_some_and(|view| view.id() == id)
}

/// A link's name where others have the same: `NAME~NUMBER`.
fn numbered(name: &[u8], id: ObjectId) -> Vec<u8> {
    let number = format!("~{}", id.0);
    let room = NAME_MAX - number.len();
    let mut text = name[..name.len().min(room)].to_vec();
    text.extend_from_slice(number.as_bytes());
    text
}

/// The number behind a name.
fn number_in(name: &[u8]) -> Option<ObjectId> {
    let at = name.iter().rposition(|&b| b == b'~')?;
    let digits = std::str::from_utf8(&name[at + 1..]).ok()?;
    digits.parse().ok().map(ObjectId).filter(|id| !id.is_view())
}

fn dir_entry(id: ObjectId) -> Entry {
    let kind = libc::S_IFDIR;
    Entry { id, kind }
}

impl Store {
    /// Whether the name is the view's, or in it.
    pub(crate) fn is_in_view(parent: ObjectId, name: &[u8]) -> bool {
        parent.is_view() || parent == ObjectId::ROOT && name == NAME
    }

    /// # Errors
    /// EROFS if the name is the view's, or in it: nobody makes or takes away names there.
    pub(crate) fn refuse_view(&self, parent: ObjectId, name: &[u8]) -> Result<()> {
        match Store::is_in_view(parent, name) {
            true => Err(Errno::ROFS),
            false => Ok(()),
        }
    }

    fn view_of(&self, id: ObjectId) -> Result<View> {
        if id == BY {
            return Ok(View::default());
        }
        let snapshot = self.snapshot(self.shard_of(id))?;
        let path = snapshot.get(&Key::view(id))?.ok_or(Errno::NOENT)?;
        View::of_path(path).ok_or(Errno::IO)
    }

    /// Makes that the directory can be found by its id.
    fn keep_view(&self, view: &View) -> Result<ObjectId> {
        let id = view.id();
        let shard = self.shard_of(id);
        let key = Key::view(id);
        let known = self.snapshot(shard)?.get(&key)?.map(<[u8]>::to_vec);
        if known.is_none() {
            let room = Need::Bytes(view.path.len());
            self.write(self.set(&[shard]), room, |w| w.put(shard, &key, &view.path))?;
        }
        match known.is_none_or(|path| path == view.path) {
            true => Ok(id),
            // Two paths of one hash.
            false => Err(Errno::IO),
        }
    }

    /// What the name is in the view, or of it.
    pub(crate) fn lookup_in_view(&self, parent: ObjectId, name: &[u8]) -> Result<Option<Entry>> {
        if parent == ObjectId::ROOT {
            return Ok(Some(dir_entry(BY)));
        }
        let view = self.view_of(parent)?;
        if view.lists_files()
            && let Some(id) = self.link_in_view(&view, name)?
        {
            let id = id.view_link(view.depth);
            let kind = libc::S_IFLNK;
            return Ok(Some(Entry { id, kind }));
        }
        let Some(inner) = view.inner(name) else {
            return Ok(None);
        };
        let there = match &inner.key {
            Some(key) => !self.written(Some(hash_of(key)), 0, 1)?.items.is_empty(),
            None => self.is_any(&inner.words)?,
        };
        match there {
            true => Ok(Some(dir_entry(self.keep_view(&inner)?))),
            false => Ok(None),
        }
    }

    /// The object to which the link `name` leads.
    fn link_in_view(&self, view: &View, name: &[u8]) -> Result<Option<ObjectId>> {
        let called = |name: &[u8], id| Mark {
            name: hash_of(name),
            id,
        };
        let mut found = Vec::new();
        let mut from = Some(called(name, ObjectId(0)));
        while let Some(at) = from.filter(|_| found.len() < 2) {
            let page = self.search(&view.words, at, Some(at.name), 2)?;
            let same = page.items.iter().filter(|hit| hit.name.1 == name);
            found.extend(same.map(|hit| hit.mark.id));
            from = page.next;
        }
        if let [one] = found[..] {
            return Ok(Some(one));
        }
        let Some(id) = number_in(name) else {
            return Ok(None);
        };
        let known = match self.indexed_name(id) {
            Ok((_, known)) if numbered(&known, id) == name => known,
            Ok(_) | Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(e),
        };
        let mark = called(&known, id);
        let page = self.search(&view.words, mark, Some(mark.name), 1)?;
        Ok(page.items.iter().any(|hit| hit.mark == mark).then_some(id))
    }

    /// As [`Store::list`], of a directory of the view. The position is the place where the rest begins.
    pub(crate) fn list_view(
        &self,
        dir: ObjectId,
        position: &mut DirPosition,
        each: &mut impl FnMut(&[u8], Entry) -> bool,
    ) -> Result<()> {
        const END: usize = 1;
        let view = self.view_of(dir)?;
        if view.lists_files() {
            return self.list_links(&view, position, each);
        }
        let of = view.key.as_deref().map(hash_of);
        while position.shard != END {
            let from = position
                .name
                .first_chunk()
                .copied()
                .map_or(0, u64::from_be_bytes);
            let page = self.written(of, from, PAGE)?;
            for (hash, text) in page.items {
                let inner = view.inner(&text).filter(|_| text.len() <= NAME_MAX);
                if inner.is_some_and(|inner| !each(&text, dir_entry(inner.id()))) {
                    return Ok(());
                }
                match hash.checked_add(1) {
                    Some(next) => position.name = next.to_be_bytes().to_vec(),
                    None => position.shard = END,
                }
            }
            match page.next {
                Some(next) => position.name = next.to_be_bytes().to_vec(),
                None => position.shard = END,
            }
        }
        Ok(())
    }

    fn list_links(
        &self,
        view: &View,
        position: &mut DirPosition,
        each: &mut impl FnMut(&[u8], Entry) -> bool,
    ) -> Result<()> {
        const END: usize = 1;
        let place = |mark: Mark| [mark.name.to_be_bytes(), mark.id.0.to_be_bytes()].concat();
        while position.shard != END {
            let number = |at: usize| {
                let bytes = position.name.get(at..at + 8)?;
                bytes.try_into().ok().map(u64::from_be_bytes)
            };
            let from = Mark {
                name: number(0).unwrap_or(0),
                id: ObjectId(number(8).unwrap_or(0)),
            };
            // What has just been told is right before it.
            let mut last = (from.id.0 != 0).then_some(from.name);
            let mut page = self.search(&view.words, from, None, PAGE)?;
            // Whether a name is the only one of its kind is told by its neighbours.
            while let (Some(next), 0..=1) = (page.next, page.items.len()) {
                let more = self.search(&view.words, next, None, PAGE)?;
                page.items.extend(more.items);
                page.next = more.next;
            }
            let end = page.next.is_none();
            let told = page.items.len() - usize::from(!end);
            for (n, hit) in page.items[..told].iter().enumerate() {
                let name = hit.mark.name;
                let next = page.items.get(n + 1).map(|hit| hit.mark.name);
                let text = match last == Some(name) || next == Some(name) {
                    true => numbered(&hit.name.1, hit.mark.id),
                    false => hit.name.1.clone(),
                };
                let id = hit.mark.id.view_link(view.depth);
                let kind = libc::S_IFLNK;
                if !each(&text, Entry { id, kind }) {
                    return Ok(());
                }
                last = Some(name);
                position.name = place(hit.mark.after());
            }
            if end {
                position.shard = END;
            }
        }
        Ok(())
    }

    /// The attributes of something in the view, and its tail: a link's target, a directory's name.
    pub(crate) fn stat_in_view(&self, id: ObjectId) -> Result<(Inode, Vec<u8>)> {
        // The same each time, or programs that archive would think that it changes under them.
        static FIRST: OnceLock<i64> = OnceLock::new();
        let t = *FIRST.get_or_init(now);
        let mut inode = Inode {
            // How many directories are in it isn't said.
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mtime: t,
            ctime: t,
            atime: t,
            btime: t,
            ..Inode::default()
        };
        if let Some((object, depth)) = id.viewed() {
            let (dir, name) = self.indexed_name(object)?;
            let mut target = b"../".repeat(depth + 1);
            let path = self.path_of(dir)?;
            target.extend_from_slice(path.strip_prefix(b"/").unwrap_or(&path));
            if !target.ends_with(b"/") {
                target.push(b'/');
            }
            target.extend_from_slice(&name);
            inode.mode = libc::S_IFLNK | 0o777;
            inode.size = target.len() as u64;
            inode.tail = tail::TARGET;
            return Ok((inode, target));
        }
        let view = self.view_of(id)?;
        let (parent, name) = match id == BY {
            true => (ObjectId::ROOT, NAME),
            false => {
                let (parent, name) = view.split();
                (View::of_path(parent).ok_or(Errno::IO)?.id(), name)
            }
        };
        inode.mode = libc::S_IFDIR | 0o555;
        inode.parent = parent.0;
        inode.tail = tail::NAME;
        Ok((inode, name.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_in_a_path_is_read_back() {
        let long = vec![b'x'; 300];
        let values: [&[u8]; 9] = [
            b"mcse", b"", b".", b"..", b"a/b", b"100%", b"x=y", b"\0\xff", &long,
        ];
        for value in values {
            let meant = Word::new(b"k", value);
            let text = written_value(value, meant);
            assert!((1..=NAME_MAX).contains(&text.len()));
            assert!(!text.contains(&b'/') && text != b"." && text != b"..");
            assert_eq!(word(b"k", &text), Some(meant), "{value:?}");
            // Both ways to write it down.
            let by_name = View::of_path(&[b"k=", &text[..]].concat()).unwrap();
            let by_path = View::of_path(&[b"k/", &text[..]].concat()).unwrap();
            assert_eq!(by_name.words, [meant]);
            assert_eq!(by_path.words, [meant]);
        }
        for key in [&b"project"[..], b"a=b", b"a/b", b".", b"%"] {
            let text = written_key(key);
            assert_eq!(unescaped(&text).unwrap(), key);
            assert!(!text.contains(&b'=') && !text.contains(&b'/'));
        }
        for none in [&b"%"[..], b"%2", b"%zz=1", b"=1", b"k=%1", b"k=%#12"] {
            assert_eq!(View::of_path(none), None, "{none:?}");
        }
    }

    #[test]
    fn directories_lie_seven_deep_at_most() {
        let path = |n| vec!["a=1"; n].join("/");
        assert!(View::of_path(path(7).as_bytes()).is_some());
        assert!(View::of_path(path(8).as_bytes()).is_none());
        let view = View::of_path(b"a=1/b/2").unwrap();
        assert_eq!(view.split(), (&b"a=1/b"[..], &b"2"[..]));
        assert!(view.lists_files() && !View::of_path(b"a=1/b").unwrap().lists_files());
    }

    #[test]
    fn a_number_behind_a_name_is_found_again() {
        let id = ObjectId(1 << 40);
        for name in [&b"f"[..], b"f~12", &[b'n'; 255]] {
            let text = numbered(name, id);
            assert!(text.len() <= NAME_MAX);
            assert_eq!(number_in(&text), Some(id));
        }
        assert_eq!(number_in(b"f~x"), None);
        assert_eq!(number_in(b"f"), None);
    }
}
