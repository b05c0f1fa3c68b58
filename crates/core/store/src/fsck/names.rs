//! Checks that names, directories and objects fit together: every name leads to an object, every
//! object has the names that it counts, every directory can be reached from the root.

use super::findings::Report;
use super::index::check_index;
use super::model::{Model, Name, Object, drop_name, drop_object, name, set_name};
use crate::control_region::live_flag as flag;
use crate::record::{Entry, Inode, Key, tail};
use crate::recount::View;
use crate::{NAME_MAX, ObjectId, Store, now};
use std::collections::{BTreeSet, HashMap};

const ROOT: u64 = ObjectId::ROOT.0;
const PART: &str = "names";

/// Checks names, and repairs them in the model.
pub(crate) fn check_names(store: &Store, m: &mut Model, view: &View<'_>, report: &mut Report) {
    check_root(store, m, report);
    check_homes(store, m, report);
    check_entries(store, m, report);
    check_directories(store, m, report);
    check_nameless(store, m, view, report);
    check_links(store, m, report);
    check_index(store, m, report);
}

fn check_root(store: &Store, m: &mut Model, report: &mut Report) {
    if store.peers().is_object_remote(ObjectId::ROOT) {
        return;
    }
    let there = m.objects.get(&ROOT).map(|o| o.inode.is_dir());
    if there == Some(true) {
        return;
    }
    let what = if there.is_none() {
        "there is no root directory"
    } else {
        "the root isn't a directory"
    };
    report.add(
        PART,
        what.into(),
        "an empty one is made; what was in it gets its names back as far as they are there",
    );
    let t = now();
    let owner = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let inode = Inode {
        mode: libc::S_IFDIR | 0o755,
        uid: owner.0,
        gid: owner.1,
        nlink: 2,
        parent: ROOT,
        tail: tail::NAME,
        ..Inode::made_at(t)
    };
    m.objects.insert(
        ROOT,
        Object {
            inode,
            changed: true,
            ..Object::default()
        },
    );
}

/// Checks that directories and entries lie on the node on which other nodes look for them.
fn check_homes(store: &Store, m: &mut Model, report: &mut Report) {
    if store.remote.is_none() {
        return;
    }
    // Each node has an object for the root. Only the one on the root's home is used.
    let remote = m.objects.keys().copied().filter(|&id| id != ROOT);
    let remote = remote.filter(|&id| store.peers().is_object_remote(ObjectId(id)));
    for id in remote.collect::<Vec<_>>() {
        let is_dir = m.objects[&id].inode.is_dir();
        let remedy = if is_dir {
            "it is removed; what is in it is put into this node's /lost+found"
        } else {
            "stage out what you need and remove the pool"
        };
        report.add(
            PART,
            format!("object {id}: it belongs on another node, where it is looked for"),
            remedy,
        );
        if is_dir {
            drop_object(store, m, id);
        }
    }
    let all = m.entries.iter();
    let remote = all.filter(|(at, _)| store.peers().is_entry_remote(ObjectId(at.0), &at.1));
    for (at, e) in remote.map(|(at, e)| (at.clone(), *e)).collect::<Vec<_>>() {
        report.add(
            PART,
            format!(
                "the entry {} of directory {}: it belongs on another node, where it is looked \
                 for",
                name(&at.1),
                at.0
            ),
            "it is removed here; what has no other name is put into this node's /lost+found",
        );
        drop_name(store, m, &at);
        // A file that has no other name is found by `check_nameless`.
        let is_dir = m.objects.get(&e.id.0).is_some_and(|o| o.inode.is_dir());
        if is_dir && !m.entries.values().any(|other| other.id == e.id) {
            put_into_lost(store, m, e.id.0);
        }
    }
}

fn check_entries(store: &Store, m: &mut Model, report: &mut Report) {
    let all: Vec<(Name, Entry)> = m.entries.iter().map(|(n, e)| (n.clone(), *e)).collect();
    for (at, e) in all {
        let what = || format!("the entry {} of directory {}", name(&at.1), at.0);
        let odd = at.1.is_empty()
            || at.1.len() > NAME_MAX
            || at.1 == b"."
            || at.1 == b".."
            || at.1.iter().any(|b| matches!(b, b'/' | 0));
        let dir = m.objects.get(&at.0).is_some_and(|o| o.inode.is_dir())
            || store.peers().is_object_remote(ObjectId(at.0));
        let object = if store.peers().is_object_remote(e.id) {
            // Whether the object exists on its node is checked by `inspect_across`.
            Some(e.kind)
        } else {
            m.objects.get(&e.id.0).map(|o| o.inode.kind())
        };
        let (wrong, remedy) = match object {
            None => (
                format!("object {} doesn't exist", e.id.0),
                "the entry is removed",
            ),
            Some(_) if odd => (
                "that can't be a name".into(),
                "its object is put into /lost+found",
            ),
            Some(_) if !dir => (
                "that directory doesn't exist".into(),
                "its object is put into /lost+found",
            ),
            Some(_) if e.id.0 == ROOT => ("it leads to the root".into(), "the entry is removed"),
            Some(kind) if kind != e.kind => {
                report.add(
                    PART,
                    format!(
                        "{}: it says type {:o}, object {} says {kind:o}",
                        what(),
                        e.kind,
                        e.id.0
                    ),
                    "the object is right",
                );
                set_name(store, m, at, Entry { id: e.id, kind });
                continue;
            }
            Some(_) => continue,
        };
        report.add(PART, format!("{}: {wrong}", what()), remedy);
        drop_name(store, m, &at);
    }
}

/// Checks that each directory has one name, which its inode contains, and can be reached from
/// the root.
fn check_directories(store: &Store, m: &mut Model, report: &mut Report) {
    let names = m.names();
    let dirs: Vec<u64> = m
        .objects
        .iter()
        .filter(|(id, o)| o.inode.is_dir() && **id != ROOT)
        .map(|(id, _)| *id)
        .collect();
    for &id in &dirs {
        check_directory_names(store, m, id, &names, report);
    }
    // Finds the directories that can be reached from the root.
    let mut children: HashMap<u64, Vec<u64>> = HashMap::new();
    for ((parent, _), e) in &m.entries {
        if e.kind == libc::S_IFDIR {
            children.entry(*parent).or_default().push(e.id.0);
        }
    }
    let mut reached = BTreeSet::new();
    reach(ROOT, &children, &mut reached);
    if store.remote.is_some() {
        // Directories whose entries lie on other nodes count as reached.
        for &id in &dirs {
            let o = &m.objects[&id];
            let parent = ObjectId(o.inode.parent);
            if store.peers().is_entry_remote(parent, &o.tail)
                || store.peers().is_object_remote(parent)
            {
                reach(id, &children, &mut reached);
            }
        }
    }
    for &id in &dirs {
        if reached.contains(&id) {
            continue;
        }
        // Finds the topmost directory above this one; in a cycle, this one.
        let (mut top, mut seen) = (id, BTreeSet::new());
        while seen.insert(top) {
            match m.objects.get(&top) {
                Some(o)
                    if names.contains_key(&top)
                        && m.entries.contains_key(&(o.inode.parent, o.tail.clone())) =>
                {
                    top = o.inode.parent
                }
                _ => break,
            }
        }
        let in_circle = m
            .entries
            .iter()
            .find(|(_, e)| e.id.0 == top)
            .map(|(n, _)| n.clone());
        let what = if in_circle.is_some() {
            "it lies inside itself"
        } else {
            "it has no name"
        };
        report.add(
            PART,
            format!("directory {top}: {what}"),
            "it is put into /lost+found",
        );
        if let Some(n) = in_circle {
            drop_name(store, m, &n);
        }
        put_into_lost(store, m, top);
        reach(top, &children, &mut reached);
    }
}

/// Checks that a directory has one name, which its inode contains.
fn check_directory_names(
    store: &Store,
    m: &mut Model,
    id: u64,
    names: &HashMap<u64, Vec<Name>>,
    report: &mut Report,
) {
    let Some(all) = names.get(&id) else { return };
    let o = &m.objects[&id];
    let known = (o.inode.parent, o.tail.clone());
    let right = if all.contains(&known) {
        known
    } else {
        all[0].clone()
    };
    if (o.inode.parent, &o.tail) != (right.0, &right.1) {
        report.add(
            PART,
            format!(
                "{}: it says that it is {} in directory {}",
                m.description(id, names),
                name(&o.tail),
                o.inode.parent
            ),
            "its name is right",
        );
        move_directory(m, id, &right);
    }
    for other in all.iter().filter(|n| **n != right) {
        report.add(
            PART,
            format!(
                "{}: it has the name {} in directory {} too",
                m.description(id, names),
                name(&other.1),
                other.0
            ),
            "a directory has one name; that one is removed",
        );
        drop_name(store, m, other);
    }
}

fn move_directory(m: &mut Model, id: u64, to: &Name) {
    if let Some(o) = m.objects.get_mut(&id) {
        o.inode.parent = to.0;
        o.inode.tail = tail::NAME;
        o.tail = to.1.clone();
        o.changed = true;
    }
}

/// Checks the objects without a name: in use, to be removed, or lost.
fn check_nameless(store: &Store, m: &mut Model, view: &View<'_>, report: &mut Report) {
    let mut named: std::collections::HashSet<u64> = m.entries.values().map(|e| e.id.0).collect();
    let linked = m.objects.iter().filter(|(_, o)| !o.links.is_empty());
    named.extend(linked.map(|(id, _)| *id));
    let ids: Vec<u64> = m.objects.keys().copied().collect();
    for id in ids {
        let o = &m.objects[&id];
        // Parts have no name. Whether their files exist is checked by `inspect_across`.
        if id == ROOT || o.inode.is_dir() || ObjectId(id).is_part() && !o.orphan {
            continue;
        }
        let live = view.live.get(&id);
        let shard = store.files.shard_of(ObjectId(id));
        match (named.contains(&id), o.orphan) {
            (true, false) => {}
            (true, true) => {
                report.add(
                    PART,
                    format!("object {id}: it has a name, but is noted as having none"),
                    "the note is removed",
                );
                m.changes
                    .push((shard, Key::orphan(ObjectId(id)).to_vec(), None));
                m.objects.get_mut(&id).expect("just seen").orphan = false;
            }
            (false, true) if live.is_some_and(|l| l.flags & flag::UNLINKED == 0) => report.add(
                PART,
                format!(
                    "object {id}: it has no name, but its live entry {} doesn't say so",
                    live.map_or(0, |l| l.index)
                ),
                "its last user removes it all the same",
            ),
            (false, true) if live.is_some() => {}
            (false, true) => {
                report.add(
                    PART,
                    format!("object {id}: it has no name and nobody has it open"),
                    "it is removed",
                );
                drop_object(store, m, id);
            }
            (false, false) => {
                report.add(
                    PART,
                    format!("object {id}: it has no name, and isn't noted as such"),
                    "it is put into /lost+found",
                );
                put_into_lost(store, m, id);
            }
        }
    }
}

/// Gives an object that has no name a name in this node's /lost+found. Directory and entry lie
/// on this node, since other nodes get no requests during a repair.
fn put_into_lost(store: &Store, m: &mut Model, id: u64) {
    let dir = lost_directory(store, m);
    let kind = m.objects.get(&id).map_or(0, |o| o.inode.kind());
    let at = (dir, name_of_here(store, dir, &format!("#{id}")));
    if kind == libc::S_IFDIR {
        move_directory(m, id, &at);
    }
    set_name(
        store,
        m,
        at,
        Entry {
            id: ObjectId(id),
            kind,
        },
    );
}

/// The first of the names `name`, `name.1`, `name.2`, ... whose entry in a directory would lie
/// on this node.
fn name_of_here(store: &Store, dir: u64, name: &str) -> Vec<u8> {
    /// Number of names to try: enough that one lies on this node even in a pool of the largest
    /// size.
    const MAX_NUMBERED_NAMES: usize = 1 << 20;
    let others = (1..MAX_NUMBERED_NAMES).map(|n| format!("{name}.{n}").into_bytes());
    let mut all = std::iter::once(name.as_bytes().to_vec()).chain(others);
    all.find(|name| !store.peers().is_entry_remote(ObjectId(dir), name))
        .unwrap_or_else(|| name.as_bytes().to_vec())
}

/// Returns the directory of the root for lost objects of this node. Makes it if there is none.
fn lost_directory(store: &Store, m: &mut Model) -> u64 {
    let lost = (ROOT, name_of_here(store, ROOT, "lost+found"));
    match m.entries.get(&lost) {
        Some(e) if e.kind == libc::S_IFDIR => return e.id.0,
        Some(_) => return ROOT,
        None => {}
    }
    let owner = m.objects.get(&ROOT).map(|o| (o.inode.uid, o.inode.gid));
    let (uid, gid) = owner.unwrap_or_else(|| {
        (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        )
    });
    let slot = crate::Slot::of_entry(ObjectId::ROOT, &lost.1);
    let shard = slot.shard(store.files.count());
    let last = m
        .objects
        .keys()
        .map(|id| ObjectId(*id))
        .filter(|id| store.files.shard_of(*id) == shard && !id.is_part());
    let id = ObjectId::new(last.map(|id| id.seq()).max().unwrap_or(1).max(1) + 1, slot);
    let t = now();
    let inode = Inode {
        mode: libc::S_IFDIR | 0o700,
        uid,
        gid,
        nlink: 2,
        parent: ROOT,
        tail: tail::NAME,
        ..Inode::made_at(t)
    };
    let new = Object {
        inode,
        tail: lost.1.clone(),
        changed: true,
        ..Object::default()
    };
    m.objects.insert(id.0, new);
    let kind = libc::S_IFDIR;
    set_name(store, m, lost, Entry { id, kind });
    id.0
}

/// Checks link counts and the other fields of inodes that depend on names.
fn check_links(store: &Store, m: &mut Model, report: &mut Report) {
    let mut counts: HashMap<u64, u32> = HashMap::new();
    for ((parent, _), e) in &m.entries {
        if e.kind == libc::S_IFDIR {
            *counts.entry(*parent).or_default() += 1;
        } else {
            *counts.entry(e.id.0).or_default() += 1;
        }
    }
    let mut wrong = Vec::new();
    for (&id, o) in &m.objects {
        if ObjectId(id).is_part() {
            continue;
        }
        if o.inode.is_dir() && store.remote.is_some() {
            // The directory's entries lie on all nodes, so they can't be counted here.
            continue;
        }
        let n = counts.get(&id).copied().unwrap_or(0) + o.links.len() as u32;
        let expected = if o.inode.is_dir() { n + 2 } else { n };
        if o.inode.nlink != expected {
            wrong.push((id, expected));
        }
    }
    let names = if wrong.is_empty() {
        HashMap::new()
    } else {
        m.names()
    };
    for (id, n) in wrong {
        let what = m.description(id, &names);
        let o = m.objects.get_mut(&id).expect("just seen");
        report.add(
            PART,
            format!("{what}: link count {}, but it should be {n}", o.inode.nlink),
            format!("it becomes {n}"),
        );
        o.inode.nlink = n;
        o.changed = true;
    }
    for (&id, o) in &mut m.objects {
        if !o.attributes.is_empty() && !o.inode.has_attributes {
            report.add(
                PART,
                format!("object {id}: it has extended attributes that it doesn't know of"),
                "it is told",
            );
            o.inode.has_attributes = true;
            o.changed = true;
        }
    }
}

/// Adds `top` and all directories below it to `reached`.
fn reach(top: u64, children: &HashMap<u64, Vec<u64>>, reached: &mut BTreeSet<u64>) {
    let mut next = vec![top];
    while let Some(dir) = next.pop() {
        if reached.insert(dir) {
            next.extend(children.get(&dir).into_iter().flatten());
        }
    }
}
