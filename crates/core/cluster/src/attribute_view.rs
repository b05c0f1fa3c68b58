//! The view by attributes (`.by`) over all nodes: what its directories list, where its links lead.
//!
//! The view stores only the paths of directories that were looked up
//! (`store/src/attribute_view.rs`), so that their ids can be resolved. For everything else, each
//! call sends requests to the index of each node.

use crate::views::Search;
use forebay_placement::BY;
use forebay_store::attribute_view::{NAME, View, number_in, numbered};
use forebay_store::index::hash_of;
use forebay_store::record::{Key, Mark, tail};
use forebay_store::records::{ChangeRecords, Need, ReadRecords, Records};
use forebay_store::{DirPosition, Entry, Inode, NAME_MAX, ObjectId, Result, now};
use rustix::io::Errno;
use std::sync::OnceLock;

/// Maximum number of items in the reply to one request to the index.
const PAGE: usize = 512;

fn dir_entry(id: ObjectId) -> Entry {
    let kind = libc::S_IFDIR;
    Entry { id, kind }
}

impl<'a> Search<'a> {
    fn view_of(&self, id: ObjectId) -> Result<View> {
        if id == BY {
            return Ok(View::default());
        }
        let records = self.store().records_of(id)?;
        let path = records.attached(&Key::view(id))?.ok_or(Errno::NOENT)?;
        View::of_path(path).ok_or(Errno::IO)
    }

    /// Records the path of a directory of the view under its id, so that the id can be resolved.
    /// Returns the id.
    fn keep_view(&self, view: &View) -> Result<ObjectId> {
        let id = view.id();
        let key = Key::view(id);
        let known = self
            .store()
            .records_of(id)?
            .attached(&key)?
            .map(<[u8]>::to_vec);
        if known.is_none() {
            let room = Need::Bytes(view.path.len());
            let set = self.store().names().object_set(id);
            self.store()
                .transact(set, room, |w| w.attach(id, &key, &view.path))?;
        }
        if known.is_none_or(|path| path == view.path) {
            Ok(id)
        } else {
            // The id is a hash of the path, and another path has the same hash.
            Err(Errno::IO)
        }
    }

    /// Returns the entry `name` of a directory of the view. For the pool's root, returns the entry
    /// of the view itself (`.by`).
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
        if there {
            Ok(Some(dir_entry(self.keep_view(&inner)?)))
        } else {
            Ok(None)
        }
    }

    /// Returns the object to which the link `name` refers.
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

    /// As [`crate::Namespace::list`], for a directory of the view. `position` is that of the first
    /// entry that hasn't been listed yet.
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
            // A position with an id follows an item that was returned: the hash of that item's name
            // is `from.name`.
            let mut last = (from.id.0 != 0).then_some(from.name);
            let mut page = self.search(&view.words, from, None, PAGE)?;
            // An item's neighbours show whether other objects have the same name, so a page needs
            // two items.
            while let (Some(next), 0..=1) = (page.next, page.items.len()) {
                let more = self.search(&view.words, next, None, PAGE)?;
                page.items.extend(more.items);
                page.next = more.next;
            }
            let end = page.next.is_none();
            let whole = page.items.len() - usize::from(!end);
            for (n, hit) in page.items[..whole].iter().enumerate() {
                let name = hit.mark.name;
                let next = page.items.get(n + 1).map(|hit| hit.mark.name);
                let text = if last == Some(name) || next == Some(name) {
                    numbered(&hit.name.1, hit.mark.id)
                } else {
                    hit.name.1.clone()
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

    /// Returns the attributes of a link or directory of the view, and its tail: a link's target, a
    /// directory's name.
    pub(crate) fn stat_in_view(&self, id: ObjectId) -> Result<(Inode, Vec<u8>)> {
        // The times must be the same at each call: otherwise archivers would report that the file
        // changes while they read it.
        static FIRST: OnceLock<i64> = OnceLock::new();
        let t = *FIRST.get_or_init(now);
        let mut inode = Inode {
            // A link count of 1 tells programs that the number of subdirectories isn't known.
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            ..Inode::made_at(t)
        };
        if let Some((object, depth)) = id.viewed() {
            let (dir, name) = self.indexed_name(object)?;
            let mut target = b"../".repeat(depth + 1);
            let path = self.cluster.namespace().path_of(dir)?;
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
        let (parent, name) = if id == BY {
            (ObjectId::ROOT, NAME)
        } else {
            let (parent, name) = view.split();
            (View::of_path(parent).ok_or(Errno::IO)?.id(), name)
        };
        inode.mode = libc::S_IFDIR | 0o555;
        inode.parent = parent.0;
        inode.tail = tail::NAME;
        Ok((inode, name.to_vec()))
    }
}
