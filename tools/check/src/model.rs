//! A small model of a POSIX file system: its states, and the steps of the operations.
//!
//! An operation is one step if POSIX or Linux makes it atomic; otherwise it is several. Each
//! component of a path is looked up at its own moment. A read sees each cell at its own moment.
//! O_TRUNC truncates after the open. A write in place writes cell by cell, unless it is of one
//! cell. An operation that only reads may see a state at any moment while it lasts, so it takes the
//! first one that fits.

use crate::operation::*;
use std::rc::Rc;

/// An object's id: the number of the operation that created it.
pub type Id = u32;
pub const ROOT: Id = 1;
/// In an entry, no object; elsewhere, no operation.
pub const NONE: Id = 0;

/// The values that a cell may show: one, or several if a write is in progress or was cut off.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Cell {
    more: u8,
    value: [u64; VALUES],
}

impl Cell {
    pub fn of(value: u64) -> Cell {
        Cell {
            more: 0,
            value: [value, 0, 0],
        }
    }

    fn values(&self) -> &[u64] {
        &self.value[..=usize::from(self.more)]
    }

    /// Returns this cell with `value` as another possible value.
    pub fn or(mut self, value: u64) -> Cell {
        if !self.values().contains(&value) && usize::from(self.more) + 1 < VALUES {
            self.more += 1;
            self.value[usize::from(self.more)] = value;
        }
        self
    }
}

/// A lock's owner: a process (fcntl), or an open file (flock, OFD).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    Process(u16),
    Open(Id),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct File {
    pub cells: Vec<Cell>,
    /// The operation that is writing to the file.
    pub writer: Id,
    pub flocks: Vec<(Owner, bool)>,
    pub ranges: Vec<(Owner, bool)>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Directory {
    pub entries: [Id; NAMES.len()],
    pub parent: Id,
    pub removed: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Content {
    File(File),
    Directory(Directory),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Object {
    pub links: u32,
    /// The inode number; 0 until an operation has reported it.
    inode: u64,
    pub content: Content,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Handle {
    /// The operation that opened the file.
    pub id: Id,
    pub worker: u16,
    pub slot: u8,
    pub object: Id,
    /// Whether a call that was cut off is closing the file.
    pub gone: bool,
}

/// How far an operation has progressed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Progress {
    pub stage: u8,
    /// `a`: the directory or object that the operation has reached by its first path; `b`: by its
    /// second path.
    pub a: Id,
    pub b: Id,
    /// One bit for each part of the operation's result that has been matched.
    pub seen: u64,
}

/// The stage in which an operation only reads, and may match any state while it lasts.
pub const LOOKS: u8 = 200;
pub const ACT: u8 = 100;
pub const AFTER: u8 = 101;
pub const SECOND: u8 = 50;

/// An operation that was cut off: it may take effect at any time, in part, or never.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ghost {
    pub id: Id,
    pub worker: u16,
    pub progress: Progress,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    objects: Vec<(Id, Rc<Object>)>,
    pub handles: Vec<Handle>,
    pub ghosts: Vec<Ghost>,
}

/// A state that a step leads to, and whether the operation has ended with it.
pub struct After {
    pub state: State,
    pub progress: Progress,
    pub over: bool,
}

/// The behaviour that is allowed in addition to the usual one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// The cells that a write adds to a file may appear one by one, and a read may read the size
    /// again for each cell, as on tmpfs.
    pub by_cells: bool,
    /// A write of several cells isn't serialised with other writes: it writes cells in place one by
    /// one, at any time.
    pub pieces: bool,
    /// A cell may show two values while it is being written.
    pub torn: bool,
}

impl Default for State {
    fn default() -> State {
        State::new()
    }
}

impl State {
    /// Returns the state of a file system with one empty directory.
    pub fn new() -> State {
        let root = Object {
            links: 2,
            inode: 0,
            content: Content::Directory(Directory {
                entries: [NONE; NAMES.len()],
                parent: ROOT,
                removed: false,
            }),
        };
        State {
            objects: vec![(ROOT, Rc::new(root))],
            handles: Vec::new(),
            ghosts: Vec::new(),
        }
    }

    pub fn object(&self, id: Id) -> Option<&Object> {
        let at = self.objects.binary_search_by_key(&id, |o| o.0).ok()?;
        Some(&self.objects[at].1)
    }

    pub fn change(&mut self, id: Id) -> Option<&mut Object> {
        let at = self.objects.binary_search_by_key(&id, |o| o.0).ok()?;
        Some(Rc::make_mut(&mut self.objects[at].1))
    }

    pub fn file(&self, id: Id) -> Option<&File> {
        match &self.object(id)?.content {
            Content::File(f) => Some(f),
            Content::Directory(_) => None,
        }
    }

    pub fn change_file(&mut self, id: Id) -> Option<&mut File> {
        match &mut self.change(id)?.content {
            Content::File(f) => Some(f),
            Content::Directory(_) => None,
        }
    }

    pub fn directory(&self, id: Id) -> Option<&Directory> {
        match &self.object(id)?.content {
            Content::Directory(d) => Some(d),
            Content::File(_) => None,
        }
    }

    pub fn change_directory(&mut self, id: Id) -> Option<&mut Directory> {
        match &mut self.change(id)?.content {
            Content::Directory(d) => Some(d),
            Content::File(_) => None,
        }
    }

    pub fn add(&mut self, id: Id, content: Content) {
        let links = match content {
            Content::File(_) => 1,
            Content::Directory(_) => 2,
        };
        let object = Rc::new(Object {
            links,
            inode: 0,
            content,
        });
        if let Err(at) = self.objects.binary_search_by_key(&id, |o| o.0) {
            self.objects.insert(at, (id, object));
        }
    }

    /// Looks up `name` in a directory, which may have been removed. ENOTDIR if `directory` isn't
    /// one.
    pub fn look_up(&self, directory: Id, name: u8) -> Result<Option<Id>, i32> {
        let directory = self.directory(directory).ok_or(libc::ENOTDIR)?;
        let id = directory.entries[usize::from(name)];
        Ok((id != NONE).then_some(id))
    }

    pub fn set_entry(&mut self, directory: Id, name: u8, id: Id) {
        if let Some(d) = self.change_directory(directory) {
            d.entries[usize::from(name)] = id;
        }
        if let Some(d) = self.change_directory(id) {
            d.parent = directory;
        }
    }

    pub fn lose_link(&mut self, id: Id) {
        if let Some(o) = self.change(id) {
            o.links = o.links.saturating_sub(1);
            if let Content::Directory(d) = &mut o.content {
                d.removed = true;
                o.links = 0;
            }
        }
    }

    pub fn is_removed(&self, directory: Id) -> bool {
        self.directory(directory).is_none_or(|d| d.removed)
    }

    pub fn is_empty(&self, directory: Id) -> bool {
        self.directory(directory)
            .is_none_or(|d| d.entries.iter().all(|e| *e == NONE))
    }

    /// Whether `id` is `directory`, or a directory above it.
    pub fn is_above(&self, id: Id, directory: Id) -> bool {
        let mut at = directory;
        for _ in 0..100 {
            if at == id {
                return true;
            }
            match self.directory(at) {
                Some(d) if d.parent != at => at = d.parent,
                _ => return false,
            }
        }
        false
    }

    fn handle(&self, worker: u16, slot: u8) -> Option<&Handle> {
        self.handles
            .iter()
            .find(|h| h.worker == worker && h.slot == slot && !h.gone)
    }

    pub fn release(&mut self, object: Id, ranges: bool, owner: Owner) {
        if let Some(f) = self.change_file(object) {
            let list = if ranges { &mut f.ranges } else { &mut f.flocks };
            list.retain(|l| l.0 != owner);
        }
    }

    /// Returns the progress of an operation that begins.
    pub fn begin(&self, operation: &Operation, worker: u16) -> Progress {
        let mut progress = Progress {
            a: ROOT,
            b: ROOT,
            ..Progress::default()
        };
        if operation.call.needs_open() {
            let Some(handle) = self.handle(worker, operation.slot) else {
                // The slot has no open file, though the call needs one: no result will match.
                return Progress::default();
            };
            progress.a = handle.object;
            progress.b = handle.id;
            let refused = operation.errno == libc::EAGAIN && !operation.unknown();
            progress.stage = match operation.call {
                Call::Read | Call::Fstat => LOOKS,
                Call::Flock | Call::Ofd | Call::Range if refused => LOOKS,
                _ => ACT,
            };
        } else if operation.call == Call::Death {
            progress.stage = ACT;
        }
        progress
    }

    /// Turns an operation that was cut off into a [`Ghost`]: from now on it may take effect.
    pub fn haunt(&mut self, operation: &Operation, worker: u16) {
        if operation.only_looks() {
            return;
        }
        let progress = self.begin(operation, worker);
        if operation.call == Call::Close
            && let Some(h) = self.handles.iter_mut().find(|h| h.id == progress.b)
        {
            h.gone = true;
        }
        self.ghosts.push(Ghost {
            id: operation.id,
            worker,
            progress,
        });
        self.ghosts.sort_unstable_by_key(|g| g.id);
    }

    /// Matches the results of an operation at [`LOOKS`] with this state. Returns true once all its
    /// results have been seen.
    pub fn look(&mut self, o: &Operation, worker: u16, p: &mut Progress, rules: Rules) -> bool {
        match o.call {
            Call::Read => self.look_at_cells(o, p, rules),
            Call::Fstat | Call::Stat => {
                let Some(object) = self.object(p.a) else {
                    return false;
                };
                if !object.is_inode(o.inode) || (object.inode == 0 && !self.may_be(p.a, o.inode)) {
                    return false;
                }
                match &self.object(p.a).map(|o| &o.content) {
                    Some(Content::File(f)) if !o.directory => {
                        p.seen |= u64::from(f.cells.len() == o.size as usize);
                    }
                    Some(Content::Directory(_)) if o.directory => p.seen |= 3,
                    _ => {}
                }
                if self.object(p.a).is_some_and(|x| x.links == o.links) {
                    p.seen |= 2;
                }
                if p.seen != 3 {
                    return false;
                }
                if let Some(object) = self.change(p.a) {
                    object.inode = o.inode;
                }
                true
            }
            Call::List => {
                let Some(d) = self.directory(p.a) else {
                    return false;
                };
                for (n, id) in d.entries.iter().enumerate() {
                    if (*id != NONE) == (o.listed & (1 << n) != 0) {
                        p.seen |= 1 << n;
                    }
                }
                o.listed >> NAMES.len() == 0 && p.seen == (1 << NAMES.len()) - 1
            }
            Call::Flock | Call::Ofd | Call::Range => self.conflicts(o, worker, p),
            _ => false,
        }
    }

    /// Matches a read's results with the file's cells. Bits of `p.seen`, lowest first: for each
    /// cell, whether the file was long enough to contain it; for each value of each cell; for the
    /// count.
    fn look_at_cells(&self, o: &Operation, p: &mut Progress, rules: Rules) -> bool {
        let Some(file) = self.file(p.a) else {
            return false;
        };
        let count = o.count as usize;
        if count > CELLS {
            return false;
        }
        let (at, size) = (o.at as usize, file.cells.len());
        let enough = size.saturating_sub(at).min(o.n as usize);
        let mut all = 1 << 63;
        if enough == count || (rules.by_cells && enough < count && count < o.n as usize) {
            p.seen |= 1 << 63;
        }
        for k in 0..count {
            let reached = 1 << k;
            if size > at + k {
                p.seen |= reached;
            }
            for (n, value) in o.found[k][..usize::from(o.values[k])].iter().enumerate() {
                let bit = 1 << (CELLS + k * VALUES + n);
                all |= bit;
                let shown = match file.cells.get(at + k) {
                    Some(cell) => cell.values().contains(value),
                    // The cell existed when the read began, and a truncation has removed it since.
                    None => *value == 0,
                };
                if p.seen & reached != 0 && shown {
                    p.seen |= bit;
                }
            }
        }
        p.seen & all == all
    }

    /// Whether no other existing object has this inode number.
    fn may_be(&self, id: Id, inode: u64) -> bool {
        self.objects.iter().all(|(other, object)| {
            *other == id
                || object.inode != inode
                || (object.links == 0 && self.handles.iter().all(|h| h.object != *other))
        })
    }

    pub fn lock_owner(&self, o: &Operation, worker: u16, p: &Progress) -> Owner {
        match o.call {
            Call::Range => Owner::Process(worker),
            _ => Owner::Open(p.b),
        }
    }

    pub fn conflicts(&self, o: &Operation, worker: u16, p: &Progress) -> bool {
        let Some(file) = self.file(p.a) else {
            return false;
        };
        let list = if o.call == Call::Flock {
            &file.flocks
        } else {
            &file.ranges
        };
        let owner = self.lock_owner(o, worker, p);
        let exclusive = o.flags & SHARED == 0;
        list.iter()
            .any(|(other, theirs)| *other != owner && (exclusive || *theirs))
    }

    /// Removes objects that no process can reach any more.
    pub fn forget(&mut self) {
        let kept = |id: Id, o: &Object| {
            id == ROOT
                || o.links > 0
                || self.handles.iter().any(|h| h.object == id)
                || self
                    .ghosts
                    .iter()
                    .any(|g| g.progress.a == id || g.progress.b == id)
        };
        let objects = self
            .objects
            .iter()
            .filter(|(id, o)| kept(*id, o))
            .cloned()
            .collect();
        self.objects = objects;
    }
}

impl Object {
    fn is_inode(&self, inode: u64) -> bool {
        self.inode == 0 || self.inode == inode
    }
}

/// Shows the state to people.
impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (id, o) in &self.objects {
            write!(f, "    {}: {} links", shown(u64::from(*id) << 8), o.links)?;
            match &o.content {
                Content::File(file) => {
                    write!(f, ", file:")?;
                    for cell in &file.cells {
                        let values: Vec<String> = cell.values().iter().map(|v| shown(*v)).collect();
                        write!(f, " {}", values.join("|"))?;
                    }
                    if !file.flocks.is_empty() || !file.ranges.is_empty() {
                        write!(f, "; flock {:?}, ranges {:?}", file.flocks, file.ranges)?;
                    }
                }
                Content::Directory(d) => {
                    write!(f, ", directory:")?;
                    for (n, id) in d.entries.iter().enumerate().filter(|e| *e.1 != NONE) {
                        write!(f, " {}={}", NAMES[n], shown(u64::from(*id) << 8))?;
                    }
                }
            }
            writeln!(f)?;
        }
        for h in &self.handles {
            writeln!(
                f,
                "    process {} slot {}: {}",
                h.worker,
                h.slot,
                shown(u64::from(h.object) << 8)
            )?;
        }
        for g in &self.ghosts {
            writeln!(
                f,
                "    cut off, perhaps still to come: {}",
                shown(u64::from(g.id) << 8)
            )?;
        }
        Ok(())
    }
}
