//! The steps of operations that change something or look up a name: the possible results of the
//! next step.

use crate::model::*;
use crate::operation::*;

/// Computes all possible results of the next step of an operation.
pub struct Stepping<'a> {
    pub operation: &'a Operation,
    pub worker: u16,
    pub rules: Rules,
    pub out: &'a mut Vec<After>,
}

impl Stepping<'_> {
    fn unknown(&self) -> bool {
        self.operation.unknown()
    }

    fn push(&mut self, state: State, progress: Progress, over: bool) {
        self.out.push(After {
            state,
            progress,
            over,
        });
    }

    /// Ends the operation with `errno` (0: success), if that is its recorded result or its result
    /// isn't known.
    fn ends(&mut self, state: State, progress: Progress, errno: i32) {
        if self.unknown() || self.operation.errno == errno {
            self.push(state, progress, true);
        }
    }

    fn on(&mut self, state: State, mut progress: Progress, stage: u8) {
        progress.stage = stage;
        progress.seen = 0;
        self.push(state, progress, false);
    }

    pub fn step(&mut self, state: &State, p: Progress) {
        let o = self.operation;
        match o.call {
            Call::Open
            | Call::Stat
            | Call::Unlink
            | Call::Mkdir
            | Call::Rmdir
            | Call::List
            | Call::Link
            | Call::Rename
            | Call::Exchange => self.by_path(state, p),
            Call::Close => self.close(state, p),
            Call::Write => self.write(state, p),
            Call::Append => self.append(state, p),
            Call::Truncate => self.truncate(state, p),
            Call::Flock | Call::Ofd | Call::Range => self.lock(state, p),
            Call::Death => self.death(state, p),
            Call::Read | Call::Fstat => {}
        }
    }

    fn by_path(&mut self, state: &State, p: Progress) {
        let o = self.operation;
        let (from, to) = (o.path.names(), o.to.names());
        // Link and List resolve their first path to its last component, as do operations on the
        // round's directory itself.
        let whole = matches!(o.call, Call::Link | Call::List);
        let first = from.len() - usize::from(!whole && !from.is_empty());
        let mut p = p;
        if p.stage < SECOND {
            let at = usize::from(p.stage);
            if at < first {
                match state.look_up(p.a, from[at]) {
                    Err(e) => self.first_fails(state, p, e),
                    Ok(None) => self.first_fails(state, p, libc::ENOENT),
                    // A component that isn't a directory fails at once if more components follow.
                    Ok(Some(id)) if at + 1 < from.len() && state.directory(id).is_none() => {
                        self.first_fails(state, p, libc::ENOTDIR);
                    }
                    Ok(Some(id)) => {
                        p.a = id;
                        self.on(state.clone(), p, p.stage + 1);
                    }
                }
                return;
            }
            p.stage = SECOND;
        }
        if p.stage < ACT {
            let at = usize::from(p.stage - SECOND);
            if at + 1 < to.len() && (o.call == Call::Link || o.call.renames()) {
                match state.look_up(p.b, to[at]) {
                    Err(e) => self.ends(state.clone(), p, e),
                    Ok(None) => self.ends(state.clone(), p, libc::ENOENT),
                    Ok(Some(id)) if state.directory(id).is_none() => {
                        self.ends(state.clone(), p, libc::ENOTDIR);
                    }
                    Ok(Some(id)) => {
                        p.b = id;
                        self.on(state.clone(), p, p.stage + 1);
                    }
                }
                return;
            }
            p.stage = ACT;
        }
        match o.call {
            _ if p.a == NONE => match state.look_up(p.b, Self::last(&o.to)) {
                Err(e) => self.ends(state.clone(), p, e),
                Ok(Some(_)) if o.call == Call::Link => self.ends(state.clone(), p, libc::EEXIST),
                Ok(_) => {}
            },
            Call::Open => self.open(state, p),
            Call::Stat | Call::List => self.find(state, p),
            Call::Mkdir => self.mkdir(state, p),
            Call::Unlink | Call::Rmdir => self.remove(state, p),
            Call::Link => self.link(state, p),
            Call::Exchange => self.exchange(state, p),
            _ => self.rename(state, p),
        }
    }

    /// Handles a first path that doesn't exist. If there is a second path, the error of that path
    /// may be reported instead.
    fn first_fails(&mut self, state: &State, mut p: Progress, errno: i32) {
        self.ends(state.clone(), p, errno);
        if self.operation.call == Call::Link || self.operation.call.renames() {
            p.a = NONE;
            self.on(state.clone(), p, SECOND);
        }
    }

    fn last(path: &Path) -> u8 {
        path.names().last().copied().unwrap_or(0)
    }

    fn open(&mut self, state: &State, mut p: Progress) {
        let o = self.operation;
        if p.stage == AFTER {
            return self.truncate_to(state, p, 0);
        }
        let name = Self::last(&o.path);
        let found = match state.look_up(p.a, name) {
            Err(e) => return self.ends(state.clone(), p, e),
            Ok(found) => found,
        };
        let create = o.flags & CREATE != 0;
        let id = match found {
            Some(_) if create && o.flags & EXCLUSIVE != 0 => {
                return self.ends(state.clone(), p, libc::EEXIST);
            }
            Some(id) if state.directory(id).is_some() => {
                return self.ends(state.clone(), p, libc::EISDIR);
            }
            Some(id) => id,
            None if !create || state.is_removed(p.a) => {
                return self.ends(state.clone(), p, libc::ENOENT);
            }
            None => o.id,
        };
        if o.errno != 0 && !self.unknown() {
            return;
        }
        let mut state = state.clone();
        if found.is_none() {
            state.add(id, Content::File(File::default()));
            state.set_entry(p.a, name, id);
        }
        if !self.unknown() {
            state.handles.push(Handle {
                id: o.id,
                worker: self.worker,
                slot: o.slot,
                object: id,
                gone: false,
            });
            state.handles.sort_unstable_by_key(|h| h.id);
        }
        if found.is_some() && o.flags & TRUNCATE != 0 {
            p.a = id;
            return self.on(state, p, AFTER);
        }
        self.ends(state, p, 0);
    }

    /// Resolves a name to an object, whose attributes are read in a later step.
    fn find(&mut self, state: &State, mut p: Progress) {
        let o = self.operation;
        let found = if o.call == Call::List || o.path.len == 0 {
            Ok(Some(p.a))
        } else {
            state.look_up(p.a, Self::last(&o.path))
        };
        match found {
            Err(e) => self.ends(state.clone(), p, e),
            Ok(None) => self.ends(state.clone(), p, libc::ENOENT),
            Ok(Some(id)) if o.call == Call::List && state.directory(id).is_none() => {
                self.ends(state.clone(), p, libc::ENOTDIR);
            }
            Ok(Some(id)) if o.errno == 0 => {
                p.a = id;
                self.on(state.clone(), p, LOOKS);
            }
            Ok(Some(_)) => {}
        }
    }

    fn mkdir(&mut self, state: &State, p: Progress) {
        let o = self.operation;
        let name = Self::last(&o.path);
        match state.look_up(p.a, name) {
            Err(e) => self.ends(state.clone(), p, e),
            Ok(Some(_)) => self.ends(state.clone(), p, libc::EEXIST),
            Ok(None) if state.is_removed(p.a) => self.ends(state.clone(), p, libc::ENOENT),
            Ok(None) => {
                let mut state = state.clone();
                state.add(
                    o.id,
                    Content::Directory(Directory {
                        entries: [NONE; NAMES.len()],
                        parent: p.a,
                        removed: false,
                    }),
                );
                state.set_entry(p.a, name, o.id);
                self.ends(state, p, 0);
            }
        }
    }

    fn remove(&mut self, state: &State, p: Progress) {
        let o = self.operation;
        let name = Self::last(&o.path);
        let id = match state.look_up(p.a, name) {
            Err(e) => return self.ends(state.clone(), p, e),
            Ok(None) => return self.ends(state.clone(), p, libc::ENOENT),
            Ok(Some(id)) => id,
        };
        let errno = match (o.call, state.directory(id).is_some()) {
            (Call::Unlink, true) => libc::EISDIR,
            (Call::Rmdir, false) => libc::ENOTDIR,
            (Call::Rmdir, true) if !state.is_empty(id) => libc::ENOTEMPTY,
            _ => 0,
        };
        let mut state = state.clone();
        if errno == 0 {
            state.set_entry(p.a, name, NONE);
            state.lose_link(id);
        }
        self.ends(state, p, errno);
    }

    /// Makes a link. `p.a` is the file, `p.b` the directory of the new name.
    fn link(&mut self, state: &State, p: Progress) {
        let name = Self::last(&self.operation.to);
        let mut errors = Vec::new();
        match state.look_up(p.b, name) {
            Err(e) => errors.push(e),
            Ok(Some(_)) => errors.push(libc::EEXIST),
            Ok(None) if state.is_removed(p.b) => errors.push(libc::ENOENT),
            Ok(None) => {}
        }
        if state.directory(p.a).is_some() {
            errors.push(libc::EPERM);
        }
        if state.object(p.a).is_none_or(|o| o.links == 0) {
            errors.push(libc::ENOENT);
        }
        let mut state = state.clone();
        for errno in &errors {
            self.ends(state.clone(), p, *errno);
        }
        if errors.is_empty() {
            state.set_entry(p.b, name, p.a);
            if let Some(o) = state.change(p.a) {
                o.links += 1;
            }
            self.ends(state, p, 0);
        }
    }

    fn rename(&mut self, state: &State, p: Progress) {
        let (from, to) = (
            Self::last(&self.operation.path),
            Self::last(&self.operation.to),
        );
        let (source, target) = match (state.look_up(p.a, from), state.look_up(p.b, to)) {
            (Ok(None), Err(e)) | (Err(_), Err(e)) => {
                self.ends(state.clone(), p, libc::ENOENT);
                return self.ends(state.clone(), p, e);
            }
            (Err(e), _) | (_, Err(e)) => return self.ends(state.clone(), p, e),
            (Ok(None), _) => return self.ends(state.clone(), p, libc::ENOENT),
            (Ok(Some(source)), Ok(target)) => (source, target),
        };
        if target == Some(source) {
            return self.ends(state.clone(), p, 0);
        }
        let is_directory = |id: Id| state.directory(id).is_some();
        // If there are several reasons for an error, POSIX leaves open which one is reported.
        let mut errors = Vec::new();
        if p.a != p.b && state.is_above(source, p.b) {
            errors.push(libc::EINVAL);
        }
        if state.is_removed(p.b) {
            errors.push(libc::ENOENT);
        }
        if let Some(t) = target {
            match (is_directory(source), is_directory(t)) {
                (true, false) => errors.push(libc::ENOTDIR),
                (false, true) => errors.push(libc::EISDIR),
                _ => {}
            }
            if is_directory(t) && (!state.is_empty(t) || state.is_above(t, p.a)) {
                errors.push(libc::ENOTEMPTY);
            }
        }
        let mut state = state.clone();
        if errors.is_empty() {
            if let Some(t) = target {
                state.lose_link(t);
            }
            state.set_entry(p.a, from, NONE);
            state.set_entry(p.b, to, source);
            return self.ends(state, p, 0);
        }
        for errno in errors {
            self.ends(state.clone(), p, errno);
        }
    }

    fn exchange(&mut self, state: &State, p: Progress) {
        let (name, other) = (
            Self::last(&self.operation.path),
            Self::last(&self.operation.to),
        );
        let (one, two) = match (state.look_up(p.a, name), state.look_up(p.b, other)) {
            (Ok(Some(one)), Ok(Some(two))) => (one, two),
            (one, two) => {
                for looked_up in [one, two] {
                    match looked_up {
                        Err(e) => self.ends(state.clone(), p, e),
                        Ok(None) => self.ends(state.clone(), p, libc::ENOENT),
                        Ok(Some(_)) => {}
                    }
                }
                return;
            }
        };
        let mut state = state.clone();
        if one == two {
            return self.ends(state, p, 0);
        }
        if p.a != p.b && (state.is_above(one, p.b) || state.is_above(two, p.a)) {
            return self.ends(state, p, libc::EINVAL);
        }
        state.set_entry(p.a, name, two);
        state.set_entry(p.b, other, one);
        self.ends(state, p, 0);
    }

    /// Closes a file. The process's locks are released in a first step, those of the open file
    /// description in a later one.
    fn close(&mut self, state: &State, p: Progress) {
        let process = Owner::Process(self.worker);
        let holds = |list: &[(Owner, bool)]| list.iter().any(|l| l.0 == process);
        let mut state = state.clone();
        if p.stage == ACT && state.file(p.a).is_some_and(|f| holds(&f.ranges)) {
            state.release(p.a, true, process);
            return self.on(state, p, AFTER);
        }
        if let Some(state) = ranges_first(&state, p.a, p.b, self.worker) {
            self.on(state, p, AFTER);
        }
        state.release(p.a, true, Owner::Open(p.b));
        state.release(p.a, false, Owner::Open(p.b));
        state.handles.retain(|h| h.id != p.b);
        self.ends(state, p, 0);
    }

    /// Closes all files that the process had open, in any order.
    fn death(&mut self, state: &State, p: Progress) {
        let mine: Vec<Handle> = state
            .handles
            .iter()
            .filter(|h| h.worker == self.worker)
            .cloned()
            .collect();
        for h in &mine {
            if let Some(state) = ranges_first(state, h.object, h.id, self.worker) {
                self.push(state, p, false);
            }
            let mut state = state.clone();
            state.release(h.object, true, Owner::Process(self.worker));
            state.release(h.object, true, Owner::Open(h.id));
            state.release(h.object, false, Owner::Open(h.id));
            state.handles.retain(|x| x.id != h.id);
            self.push(state, p, mine.len() == 1);
        }
    }

    fn lock(&mut self, state: &State, p: Progress) {
        let o = self.operation;
        let mut state = state.clone();
        let owner = state.lock_owner(o, self.worker, &p);
        let unlock = o.flags & UNLOCK != 0;
        if !unlock && state.conflicts(o, self.worker, &p) {
            return;
        }
        state.release(p.a, o.call != Call::Flock, owner);
        // An open file description that was closed meanwhile takes no lock any more.
        let there = match owner {
            Owner::Open(id) => state.handles.iter().any(|h| h.id == id),
            Owner::Process(_) => true,
        };
        if !unlock
            && there
            && let Some(f) = state.change_file(p.a)
        {
            let list = if o.call == Call::Flock {
                &mut f.flocks
            } else {
                &mut f.ranges
            };
            list.push((owner, o.flags & SHARED == 0));
            list.sort_unstable();
        }
        self.ends(state, p, 0);
    }

    fn truncate(&mut self, state: &State, p: Progress) {
        self.truncate_to(state, p, self.operation.n as usize);
    }

    fn truncate_to(&mut self, state: &State, p: Progress, cells: usize) {
        if state.file(p.a).is_some_and(|f| f.writer != NONE) {
            return;
        }
        let mut state = state.clone();
        if let Some(f) = state.change_file(p.a) {
            f.cells.resize(cells, Cell::of(0));
        }
        self.ends(state, p, 0);
    }

    fn append(&mut self, state: &State, p: Progress) {
        let o = self.operation;
        let Some(file) = state.file(p.a) else { return };
        if file.writer != NONE && file.writer != o.id {
            return;
        }
        if !self.unknown() && o.errno == 0 && o.count != o.n {
            return;
        }
        let done = usize::from(p.stage - ACT);
        // If the write was cut off, it may have added fewer cells.
        let ends: Vec<usize> = match (self.unknown(), self.rules.by_cells) {
            (true, _) => (1..=o.n as usize).collect(),
            (false, true) => vec![done + 1],
            (false, false) => vec![o.n as usize],
        };
        for end in ends {
            let mut state = state.clone();
            let over = self.unknown() || end == o.n as usize;
            if let Some(f) = state.change_file(p.a) {
                f.cells
                    .extend((done..end).map(|k| Cell::of(o.value | (k as u64 + 1))));
                f.writer = if over { NONE } else { o.id };
            }
            if over {
                self.ends(state, p, 0);
            } else {
                self.on(state, p, p.stage + 1);
            }
        }
    }

    fn write(&mut self, state: &State, p: Progress) {
        let o = self.operation;
        let Some(file) = state.file(p.a) else { return };
        let (at, n) = (o.at as usize, o.n as usize);
        if self.unknown() {
            return self.write_in_part(state, p);
        }
        if (file.writer != NONE && file.writer != o.id) || (o.errno == 0 && o.count != o.n) {
            return;
        }
        let value = |k: usize| o.value | (k as u64 + 1);
        let whole = !self.rules.torn && n == 1;
        let pieces = self.rules.pieces && n > 1;
        let size = file.cells.len();
        // A cell that the file has already is overwritten in one step. If torn writes are allowed,
        // it takes two: then it first has a mixture of old and new bytes.
        let old = match p.stage {
            ACT => size,
            _ if pieces => size,
            _ => (p.seen >> 32) as usize,
        };
        let inside = old.saturating_sub(at).min(n);
        let steps = if self.rules.torn { 2 } else { 1 };
        let wanted: u64 = if whole {
            0
        } else {
            (1 << (inside * steps)) - 1
        };
        let mut seen = p.seen & 0xffff_ffff;
        if pieces {
            // Cells that were truncated since must be written again.
            seen &= wanted;
        }
        let moved = |seen: u64| Progress {
            stage: AFTER,
            seen: seen | (old as u64) << 32,
            ..p
        };
        if seen & wanted != wanted {
            for k in 0..inside {
                let mixed = 1 << (k * steps);
                let new = 1 << (k * steps + steps - 1);
                let (bit, cell) = if seen & mixed == 0 && steps == 2 {
                    (mixed, file.cells[at + k].or(value(k)))
                } else if seen & new == 0 {
                    (new, Cell::of(value(k)))
                } else {
                    continue;
                };
                let over = seen | bit == wanted && inside == n;
                let mut state = state.clone();
                if let Some(f) = state.change_file(p.a) {
                    f.cells[at + k] = cell;
                    f.writer = if over || pieces { NONE } else { o.id };
                }
                self.push(state, moved(seen | bit), over);
            }
            return;
        }
        let mut state = state.clone();
        let Some(f) = state.change_file(p.a) else {
            return;
        };
        let first = if whole { 0 } else { inside };
        if f.cells.len() < at {
            f.cells.resize(at, Cell::of(0));
        }
        // The cells beyond the end appear all at once, or one by one.
        let done = f.cells.len().saturating_sub(at).max(first);
        let end = if self.rules.by_cells && !whole {
            done + 1
        } else {
            n
        };
        let from = if whole { 0 } else { done };
        for k in from..end {
            match f.cells.get_mut(at + k) {
                Some(cell) => *cell = Cell::of(value(k)),
                None => f.cells.push(Cell::of(value(k))),
            }
        }
        // Other processes may write beyond the end at the same time; then the order of the writes
        // may differ from cell to cell.
        f.writer = if end == n || pieces { NONE } else { o.id };
        let added = if pieces { (1 << (end * steps)) - 1 } else { 0 };
        self.push(state, moved(seen | added), end == n);
    }

    /// Handles a write that was cut off: at any time, any cell may be written, or become mixed and
    /// stay so. `seen` has a bit for each cell that was written.
    fn write_in_part(&mut self, state: &State, p: Progress) {
        let o = self.operation;
        let Some(file) = state.file(p.a) else { return };
        for k in 0..o.n as usize {
            if p.seen & (1 << k) != 0 {
                continue;
            }
            let value = o.value | (k as u64 + 1);
            let at = o.at as usize + k;
            let p = Progress {
                seen: p.seen | (1 << k),
                ..p
            };
            let over = p.seen == (1 << o.n) - 1;
            let mut written = state.clone();
            let Some(f) = written.change_file(p.a) else {
                return;
            };
            if f.cells.len() <= at {
                f.cells.resize(at + 1, Cell::of(0));
            }
            f.cells[at] = Cell::of(value);
            self.push(written, p, over);
            if let Some(cell) = file.cells.get(at) {
                let mut mixed = state.clone();
                let cell = cell.or(value);
                if let Some(f) = mixed.change_file(p.a) {
                    f.cells[at] = cell;
                }
                // A mixed cell may become complete later.
                let p = Progress {
                    seen: p.seen & !(1 << k),
                    ..p
                };
                if mixed != *state {
                    self.push(mixed, p, false);
                }
            }
        }
    }
}

/// Returns the state of an open file with locks of both kinds after its range locks are released,
/// which may happen before its flock is; None if it has only one kind.
fn ranges_first(state: &State, object: Id, handle: Id, worker: u16) -> Option<State> {
    let owners = [Owner::Open(handle), Owner::Process(worker)];
    let holds = |list: &[(Owner, bool)]| list.iter().any(|l| owners.contains(&l.0));
    let file = state.file(object)?;
    if !holds(&file.flocks) || !holds(&file.ranges) {
        return None;
    }
    let mut state = state.clone();
    for owner in owners {
        state.release(object, true, owner);
    }
    Some(state)
}
