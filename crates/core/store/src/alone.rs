//! Tests of one node's semantics: whole operations, made of the store's local functions only, are
//! compared with a model.

use crate::names::Renamed;
use crate::repair::tests::{TestStore, make, store};
use crate::{
    CHUNK, DirPosition, Entry, Inode, NewObject, ObjectId, RenameMode, Result, SetAttr, Store, now,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::collections::btree_map;

type Named<'a> = (ObjectId, &'a [u8]);

/// Operations of a pool of one node on names and bytes.
impl TestStore {
    pub fn create_object(
        &self,
        dir: ObjectId,
        name: &[u8],
        new: &NewObject<'_>,
    ) -> Result<std::result::Result<ObjectId, Entry>> {
        create_object(self, dir, name, new)
    }

    pub fn unlink(&self, dir: ObjectId, name: &[u8]) -> Result<()> {
        loop {
            let entry = self.names().entry_of(dir, name)?.ok_or(Errno::NOENT)?;
            if entry.kind == libc::S_IFDIR {
                return Err(Errno::ISDIR);
            }
            let t = now();
            if self
                .names()
                .remove_beside((dir, name), entry, self.names_epoch().now(), t)?
            {
                return self.names().note_dir_time(dir, t);
            }
        }
    }

    fn rmdir(&self, dir: ObjectId, name: &[u8]) -> Result<()> {
        let t = now();
        self.names()
            .rmdir_here((dir, name), (self.names_epoch().now(), t))?;
        self.names().note_dir_time(dir, t)
    }

    fn link(&self, id: ObjectId, dir: ObjectId, name: &[u8]) -> Result<()> {
        let t = now();
        let nameless = self
            .names()
            .link_here(id, (dir, name), (self.names_epoch().now(), t))?;
        assert!(!nameless);
        self.names().set_live_ctime(id, t)?;
        self.names().note_dir_time(dir, t)
    }

    fn rename(&self, from: Named<'_>, to: Named<'_>, mode: RenameMode) -> Result<()> {
        loop {
            let source = self.names().entry_of(from.0, from.1)?.ok_or(Errno::NOENT)?;
            let target = self.names().entry_of(to.0, to.1)?;
            let times = (self.names_epoch().now(), now());
            match self.names().rename_known(
                (from, source),
                (to, target),
                mode,
                times,
                |_| Ok(()),
            )? {
                Renamed::Otherwise => {}
                Renamed::Done | Renamed::Nothing => return Ok(()),
            }
        }
    }

    pub fn list(&self, dir: ObjectId) -> Vec<(Vec<u8>, Entry)> {
        list(self, dir)
    }

    pub fn truncate(&self, index: u32, size: u64) -> Result<()> {
        self.content().truncate_here(index, |_| Ok(size))
    }

    pub fn copy(&self, from: (u32, u64), to: (u32, u64), len: u64) -> Result<usize> {
        let len = (len as usize).min(CHUNK as usize);
        self.content().copy_here(from, to, len, true, |_, _| Ok(()))
    }

    /// Declares the controls in `words` for a file that no other process has open.
    pub fn declare(&self, id: ObjectId, words: &str) {
        let declared: forebay_controls::Declared = words.parse().unwrap();
        let set = SetAttr {
            controls: Some(declared.bits()),
            ..SetAttr::default()
        };
        self.names().set_attr_here(id, &set).unwrap();
    }
}

pub(crate) fn create_object(
    s: &Store,
    dir: ObjectId,
    name: &[u8],
    new: &NewObject<'_>,
) -> Result<std::result::Result<ObjectId, Entry>> {
    let (t, is_dir) = (now(), new.mode & crate::S_IFMT == libc::S_IFDIR);
    let made = s.names().create_here(
        (dir, name),
        new,
        (s.names_epoch().now(), t),
        is_dir,
        &mut None,
    )?;
    if made.is_ok() {
        s.names().note_dir_time(dir, t)?;
    }
    Ok(made)
}

pub(crate) fn list(s: &Store, dir: ObjectId) -> Vec<(Vec<u8>, Entry)> {
    let mut all = Vec::new();
    let mut position = DirPosition::default();
    while position.shard < s.files.count() {
        s.names()
            .list_shard(dir, &mut position, &mut |name, entry| {
                all.push((name.to_vec(), entry.unwrap()));
                true
            })
            .unwrap();
        position.shard += 1;
        position.name.clear();
    }
    all
}

/// The expected directory tree: names to objects, and of each object its links and content.
#[derive(Default)]
struct Model {
    names: BTreeMap<(u64, Vec<u8>), ObjectId>,
    files: BTreeMap<u64, Vec<u8>>,
    dirs: Vec<ObjectId>,
}

impl Model {
    fn links(&self, id: ObjectId) -> usize {
        self.names.values().filter(|of| **of == id).count()
    }

    fn forget(&mut self, id: ObjectId) {
        if self.links(id) == 0 {
            self.files.remove(&id.0);
            self.dirs.retain(|dir| *dir != id);
        }
    }

    fn is_dir(&self, id: ObjectId) -> bool {
        self.dirs.contains(&id)
    }

    fn is_empty(&self, id: ObjectId) -> bool {
        !self.names.keys().any(|(dir, _)| *dir == id.0)
    }

    fn is_below(&self, mut dir: ObjectId, above: ObjectId) -> bool {
        while dir != above {
            match self.names.iter().find(|(_, id)| **id == dir) {
                Some(((parent, _), _)) => dir = ObjectId(*parent),
                None => return false,
            }
        }
        true
    }

    /// Renames in the model as rename(2) does, and returns its result.
    fn rename(
        &mut self,
        from: &(u64, Vec<u8>),
        to: &(u64, Vec<u8>),
        mode: RenameMode,
    ) -> Result<()> {
        let source = *self.names.get(from).ok_or(Errno::NOENT)?;
        let target = self.names.get(to).copied();
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT),
            (_, Some(t)) if t == source => return Ok(()),
            (RenameMode::Replace, Some(t)) => match (self.is_dir(source), self.is_dir(t)) {
                (true, false) if self.is_below(ObjectId(to.0), source) => {
                    return Err(Errno::INVAL);
                }
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) if self.is_below(ObjectId(from.0), t) => {
                    return Err(Errno::NOTEMPTY);
                }
                (false, true) => return Err(Errno::ISDIR),
                _ => {}
            },
            _ => {}
        }
        if self.is_dir(source) && self.is_below(ObjectId(to.0), source) {
            return Err(Errno::INVAL);
        }
        match (mode, target) {
            (RenameMode::Exchange, Some(t)) => {
                if self.is_dir(t) && self.is_below(ObjectId(from.0), t) {
                    return Err(Errno::INVAL);
                }
                self.names.insert(from.clone(), t);
                self.names.insert(to.clone(), source);
            }
            (_, target) => {
                if target.is_some_and(|t| self.is_dir(t) && !self.is_empty(t)) {
                    return Err(Errno::NOTEMPTY);
                }
                self.names.remove(from);
                self.names.insert(to.clone(), source);
                if let Some(target) = target {
                    self.forget(target);
                }
            }
        }
        Ok(())
    }
}

fn content(s: &TestStore, id: ObjectId) -> Vec<u8> {
    let (index, held) = s.objects().live_acquire_here(id).unwrap();
    let bytes = crate::repair::tests::read(s, index);
    drop(held);
    s.objects().live_release(index).unwrap();
    bytes
}

fn compare(s: &TestStore, model: &Model, round: usize) {
    let mut there = BTreeMap::new();
    for &dir in &model.dirs {
        for (name, entry) in s.list(dir) {
            there.insert((dir.0, name), entry.id);
        }
    }
    assert!(there == model.names, "round {round}");
    for (&id, bytes) in &model.files {
        let id = ObjectId(id);
        assert!(content(s, id) == *bytes, "round {round}");
        let inode: Inode = s.names().stat_here(id).unwrap();
        assert_eq!(inode.nlink as usize, model.links(id), "round {round}");
        assert_eq!(inode.size, bytes.len() as u64, "round {round}");
    }
    assert_eq!(crate::fsck::check(s), Ok(vec![]), "round {round}");
}

#[test]
fn random_operations_do_what_a_file_system_does() {
    let s = store("alone");
    let mut random = forebay_fuzz::Random::new(23);
    let mut below = move |n: usize| random.below(n);
    let mut model = Model {
        dirs: vec![ObjectId::ROOT],
        ..Model::default()
    };
    for round in 0..3000 {
        let (a, b) = (below(model.dirs.len()), below(model.dirs.len()));
        let (dir, other) = (model.dirs[a], model.dirs[b]);
        let name = format!("n{}", below(6)).into_bytes();
        let other_name = format!("n{}", below(6)).into_bytes();
        let key = (dir.0, name.clone());
        let found = model.names.get(&key).copied();
        match below(9) {
            kind @ 0..=1 => {
                let is_dir = kind == 0 && model.dirs.len() < 8;
                let new = NewObject {
                    mode: if is_dir {
                        libc::S_IFDIR | 0o755
                    } else {
                        libc::S_IFREG | 0o644
                    },
                    ..NewObject::default()
                };
                match s.create_object(dir, &name, &new).unwrap() {
                    Ok(id) => {
                        assert_eq!(found, None);
                        model.names.insert(key, id);
                        if is_dir {
                            model.dirs.push(id)
                        } else {
                            _ = model.files.insert(id.0, Vec::new())
                        }
                    }
                    Err(entry) => assert_eq!(Some(entry.id), found),
                }
            }
            2 => {
                let done = s.unlink(dir, &name);
                match found {
                    None => assert_eq!(done, Err(Errno::NOENT)),
                    Some(id) if model.is_dir(id) => assert_eq!(done, Err(Errno::ISDIR)),
                    Some(id) => {
                        assert_eq!(done, Ok(()));
                        model.names.remove(&key);
                        model.forget(id);
                    }
                }
            }
            3 => {
                let done = s.rmdir(dir, &name);
                match found {
                    None => assert_eq!(done, Err(Errno::NOENT)),
                    Some(id) if !model.is_dir(id) => assert_eq!(done, Err(Errno::NOTDIR)),
                    Some(id) if !model.is_empty(id) => assert_eq!(done, Err(Errno::NOTEMPTY)),
                    Some(id) => {
                        assert_eq!(done, Ok(()));
                        model.names.remove(&key);
                        model.forget(id);
                    }
                }
            }
            4 => {
                if let Some(id) = found.filter(|id| !model.is_dir(*id)) {
                    let to = (other.0, other_name.clone());
                    let done = s.link(id, other, &other_name);
                    match model.names.entry(to) {
                        btree_map::Entry::Occupied(_) => assert_eq!(done, Err(Errno::EXIST)),
                        btree_map::Entry::Vacant(place) => {
                            assert_eq!(done, Ok(()));
                            place.insert(id);
                        }
                    }
                }
            }
            5..=6 => {
                let modes = [
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                ];
                let (mode, to) = (modes[below(3)], (other.0, other_name.clone()));
                let done = s.rename((dir, &name), (other, &other_name), mode);
                assert_eq!(done, model.rename(&key, &to, mode), "round {round}");
            }
            _ => {
                if let Some(id) = found.filter(|id| !model.is_dir(*id)) {
                    let bytes = model.files.get_mut(&id.0).unwrap();
                    let (index, held) = s.objects().live_acquire_here(id).unwrap();
                    if below(4) == 0 {
                        let size = below(2 * bytes.len() + 1000);
                        s.truncate(index, size as u64).unwrap();
                        bytes.resize(size, 0);
                    } else {
                        let (at, len) = (below(bytes.len() + 500), 1 + below(20_000));
                        let new = vec![round as u8 | 1; len];
                        crate::repair::tests::write(&s, index, at as u64, &new);
                        bytes.resize(bytes.len().max(at + len), 0);
                        bytes[at..at + len].copy_from_slice(&new);
                        if bytes.len() > 200_000 {
                            s.truncate(index, 0).unwrap();
                            bytes.clear();
                        }
                    }
                    drop(held);
                    s.objects().live_release(index).unwrap();
                }
            }
        }
        if round % 100 == 99 {
            compare(&s, &model, round);
        }
    }
}

/// Number of parked pages, free pages, and all pages, of all shards.
fn pages(s: &Store) -> (u64, u64, u64) {
    let counts = s.files.iter().map(|env| env.page_counts().unwrap());
    counts.fold((0, 0, 0), |sum, n| (sum.0 + n.0, sum.1 + n.1, sum.2 + n.2))
}

#[test]
fn freed_pages_are_parked_and_come_back() {
    let s = store("parked");
    let shards = s.files.count() as u64;
    let name = |i: u32| format!("{i:0>200}");
    let (mut highest, mut parked) = (0, 0);
    for _ in 0..3 {
        for i in 0..4000 {
            make(&s, &name(i));
        }
        let (left, _, all) = pages(&s);
        assert!(
            highest == 0 || all <= highest + shards * forebay_records::lmdb::parked::MANY,
            "{all} after {highest}"
        );
        assert!(left <= parked / 2, "{left} of {parked}");
        highest = all;
        for i in 0..4000 {
            s.unlink(ObjectId::ROOT, name(i).as_bytes()).unwrap();
        }
        let free;
        (parked, free, _) = pages(&s);
        assert!(parked > highest / 3, "{parked} of {highest}");
        assert!(
            free <= shards * (forebay_records::lmdb::parked::MANY + 16),
            "{free}"
        );
        // Parked pages hold no records, and cause no findings.
        let mut records = 0;
        for env in s.files.iter() {
            let count = |_: &[u8], _: &[u8], _| {
                records += 1;
                true
            };
            env.fresh_snapshot().unwrap().scan_all(count).unwrap();
        }
        assert_eq!(records, 1);
        assert_eq!(crate::fsck::check(&s), Ok(vec![]));
    }
}
