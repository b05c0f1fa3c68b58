//! The use of one file over time, and the verdict for each control that follows from it.
//!
//! Verdicts are conservative: where events don't show enough (inherited descriptors, mappings,
//! truncations), a control counts as contradicted. Events are ordered by time. For verdicts, a
//! write happens when it begins, and a read when it ends.

use crate::ranges::Ranges;
use crate::run::{Access, Group, Verdict, class};
use rustix::fs::OFlags;
use std::collections::{BTreeMap, BTreeSet};

/// The judged controls, as they are written in rules.
pub mod control {
    /// The file doesn't change after its first close.
    pub const IMMUTABLE: &str = "mutability=immutable";
    /// The file only grows.
    pub const APPEND: &str = "mutability=append";
    /// One process at a time has the file open.
    pub const EXCLUSIVE: &str = "parallelism=exclusive";
    /// Processes of only one node at a time have the file open.
    pub const EXCLUSIVE_NODE: &str = "parallelism=exclusive(node)";
    /// Other processes see writes after a sync or close.
    pub const COMMIT: &str = "consistency=commit";
    /// An open sees the data of writers that have closed the file before.
    pub const SESSION: &str = "consistency=session";
    /// The file is written once and read once.
    pub const ONCE: &str = "temporality=once";
    /// A batch of writes is undone as a whole.
    pub const ROLLBACK: &str = "failure=rollback";
    /// All judged controls.
    pub const ALL: [&str; 8] = [
        IMMUTABLE,
        APPEND,
        EXCLUSIVE,
        EXCLUSIVE_NODE,
        COMMIT,
        SESSION,
        ONCE,
        ROLLBACK,
    ];
}

use control::*;

/// Maximum number of ranges of a file that are compared.
const MAX_RANGES: usize = 100_000;
/// Maximum number of offsets of a file whose writes are counted, for [`ROLLBACK`].
const MAX_COUNTED_PLACES: usize = 256;
/// Minimum size at which a file is worth a control for its size alone: one chunk. Bytes.
pub const LARGE: u64 = 1 << 20;
/// Stands for the offset of a write at the end of the file.
pub const AT_END: u64 = u64::MAX;

/// The use of the file by one process.
#[derive(Debug, Default)]
pub struct User {
    /// The process's node.
    pub node: u32,
    /// Number of descriptors that the process has open now, as far as events show.
    open: u32,
    /// Number of the process's opens.
    pub opens: u64,
    /// Time of the earliest open whose descriptor is still open. Nanoseconds.
    opened_at: u64,
    /// Whether a descriptor is open for writing.
    may_write: bool,
    /// Whether the process has written since its descriptors were last all closed.
    dirty: bool,
    /// The process's reads.
    pub reads: Access,
    /// The process's writes.
    pub writes: Access,
    last_read: Option<u64>,
    last_write: Option<u64>,
}

/// The last writes at one offset of a file: all those since a write there had another length.
#[derive(Debug, Default)]
struct Place {
    count: u32,
    /// Length of each of these writes. Bytes.
    len: u64,
}

/// The use of a file by all processes.
#[derive(Debug, Default)]
pub struct Usage {
    /// The use by each process. The key is the process's index in the analysis's list.
    pub users: BTreeMap<u32, User>,
    /// Number of opens.
    pub opens: u64,
    /// The process that created the file in the run; None if it wasn't created in the run.
    pub creator: Option<u32>,
    /// The maximum end offset of an operation. Bytes.
    pub end: u64,
    /// The file's size, as far as events show it. Bytes.
    size: Option<u64>,
    /// Whether the file was written, and then closed by all its writers.
    laminated: bool,
    /// Whether a process used or closed the file without having opened it.
    inherited: bool,
    /// Number of processes that have the file open: of all, and of each node.
    open_processes: u32,
    open_nodes: BTreeMap<u32, u32>,
    dirty: u32,
    most_dirty: u32,
    most_open: u32,
    openers: BTreeSet<u32>,
    writers: BTreeSet<u32>,
    last_opener: Option<u32>,
    handovers: u64,
    read_only_before: bool,
    mapped: bool,
    /// Time and process of the last write, and time of the last write by another process.
    last_write: Option<(u64, u32)>,
    other_write: Option<u64>,
    written: Ranges,
    read: Ranges,
    too_many: bool,
    appends: u64,
    /// Whether a write had an explicit offset, rather than appending.
    placed: bool,
    /// The writes at each offset, for the first offsets that were written.
    places: BTreeMap<u64, Place>,
    /// The reason why a control is contradicted, by control.
    against: BTreeMap<&'static str, String>,
}

fn end_of(at: u64, moved: u64) -> u64 {
    at.saturating_add(moved)
}

fn account(access: &mut Access, last: &mut Option<u64>, at: u64, moved: u64, took: u64) {
    access.count += 1;
    access.bytes += moved;
    access.nanoseconds += took;
    *access.sizes.entry(class(moved)).or_default() += 1;
    match *last {
        None => access.first += 1,
        Some(end) => {
            access.consecutive += u64::from(at == end);
            access.sequential += u64::from(at >= end);
        }
    }
    *last = Some(end_of(at, moved));
}

impl Usage {
    fn rule_out(&mut self, controls: &[&'static str], why: impl Fn() -> String) {
        for control in controls {
            self.against.entry(control).or_insert_with(&why);
        }
    }

    fn user(&mut self, process: u32, node: u32) -> &mut User {
        let user = self.users.entry(process).or_default();
        user.node = node;
        user
    }

    /// Records that a process has opened the file.
    pub fn opened(&mut self, process: u32, node: u32, time: u64, flags: u32) {
        let flags = OFlags::from_bits_retain(flags);
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let creates = flags.contains(OFlags::CREATE);
        let empties = flags.contains(OFlags::TRUNC);
        let first = self.opens == 0;
        self.opens += 1;
        if first {
            self.read_only_before = !creates;
            if creates {
                self.creator = Some(process);
            }
            let is_new = creates && (flags.contains(OFlags::EXCL) || empties);
            self.size = is_new.then_some(0);
        } else if empties {
            if self.size.is_none_or(|size| size > 0) {
                self.rule_out(&[APPEND, IMMUTABLE], || "it was emptied by an open".into());
            }
            self.size = Some(0);
        }
        if writes {
            if self.laminated {
                self.rule_out(&[IMMUTABLE], || {
                    "it was opened for writing again after it had been written and closed".into()
                });
            }
            if self.read_only_before {
                self.rule_out(&[IMMUTABLE], || {
                    "it was there before, and was opened for writing".into()
                });
                if empties {
                    self.rule_out(&[APPEND], || "it was emptied by an open".into());
                }
            }
        }
        if self.last_opener.is_some_and(|last| last != process) {
            self.handovers += 1;
        }
        self.last_opener = Some(process);
        self.openers.insert(process);
        let user = self.user(process, node);
        user.opens += 1;
        user.may_write |= writes;
        user.open += 1;
        if user.open == 1 {
            user.opened_at = time;
            self.open_processes += 1;
            *self.open_nodes.entry(node).or_default() += 1;
        }
        self.most_open = self.most_open.max(self.open_processes);
        if self.open_processes > 1 {
            let n = self.open_processes;
            self.rule_out(&[EXCLUSIVE], || {
                format!("{n} processes had it open at once")
            });
        }
        if self.open_nodes.len() > 1 {
            let n = self.open_nodes.len();
            self.rule_out(&[EXCLUSIVE_NODE], || {
                format!("processes of {n} nodes had it open at once")
            });
        }
    }

    /// Records that a process has closed a descriptor of the file.
    pub fn closed(&mut self, process: u32) {
        let Some(user) = self.users.get_mut(&process) else {
            self.inherited = true;
            return;
        };
        let ends = user.open == 1;
        if user.open == 0 {
            self.inherited = true;
        } else {
            user.open -= 1;
        }
        if user.open > 0 {
            return;
        }
        let node = user.node;
        user.may_write = false;
        self.dirty -= u32::from(std::mem::take(&mut user.dirty));
        if ends {
            self.open_processes -= 1;
            if let Some(n) = self.open_nodes.get_mut(&node) {
                *n -= 1;
                if *n == 0 {
                    self.open_nodes.remove(&node);
                }
            }
        }
        let still_written = self.users.values().any(|u| u.may_write || u.dirty);
        self.laminated |= !still_written && self.end > 0 && !self.writers.is_empty();
    }

    /// Records that a process's write begins.
    pub fn write_begins(&mut self, process: u32, node: u32) {
        let user = self.user(process, node);
        let unopened = user.open == 0;
        if !std::mem::replace(&mut user.dirty, true) {
            self.dirty += 1;
        }
        self.inherited |= unopened;
        self.most_dirty = self.most_dirty.max(self.dirty);
    }

    /// Records that a write of `moved` bytes at `at`, or [`AT_END`], has ended. `took`: its
    /// duration in nanoseconds.
    pub fn wrote(&mut self, process: u32, time: u64, at: u64, moved: u64, took: u64) {
        let to_end = at == AT_END;
        let at = if to_end {
            self.size.unwrap_or(self.end)
        } else {
            at
        };
        let Some(user) = self.users.get_mut(&process) else {
            return;
        };
        account(&mut user.writes, &mut user.last_write, at, moved, took);
        if moved == 0 {
            return;
        }
        let known = match self.size {
            None if at == 0 && self.creator.is_some() => Some(0),
            other => other,
        };
        match known {
            _ if to_end => self.appends += 1,
            Some(size) if size == at => self.appends += 1,
            Some(size) => self.rule_out(&[APPEND], || {
                format!("it was written to at {at}, when its end was at {size}")
            }),
            None => self.rule_out(&[APPEND], || {
                format!("it was written to at {at}, and where its end was isn't known")
            }),
        }
        let end = end_of(at, moved);
        self.end = self.end.max(end);
        self.size = known.map(|size| size.max(end));
        self.writers.insert(process);
        if self.writers.len() > 1 {
            self.rule_out(&[IMMUTABLE], || "several processes wrote to it".into());
        }
        if self.users.values().any(|u| u.reads.bytes > 0) {
            self.rule_out(&[IMMUTABLE], || {
                "it was written to after it had been read".into()
            });
        }
        self.placed |= !to_end;
        if self.writers.len() > 1 && self.placed {
            self.rule_out(&[APPEND], || {
                "several processes wrote to it, at offsets of their own".into()
            });
        }
        if self.laminated {
            self.rule_out(&[IMMUTABLE], || {
                "it was written to after it had been written and closed".into()
            });
        }
        let (mut again, mut conflict) = (false, false);
        let users = &self.users;
        if !self.too_many {
            self.written.give(at, end, process, |other| {
                again = true;
                conflict |= other != process && users.get(&other).is_some_and(|u| u.dirty);
            });
        }
        if again {
            self.rule_out(&[ONCE], || "some of its bytes were written again".into());
        }
        if conflict {
            self.rule_out(&[COMMIT, SESSION], || {
                "two processes wrote the same bytes while both had it open".into()
            });
        }
        self.bound();
        if self.places.len() < MAX_COUNTED_PLACES || self.places.contains_key(&at) {
            let place = self.places.entry(at).or_default();
            if place.len != moved {
                *place = Place {
                    len: moved,
                    count: 0,
                };
            }
            place.count += 1;
        }
        match self.last_write {
            Some((_, last)) if last == process => {}
            before => self.other_write = before.map(|(time, _)| time),
        }
        self.last_write = Some((time, process));
    }

    fn bound(&mut self) {
        if self.written.count() + self.read.count() > MAX_RANGES {
            self.too_many = true;
            self.written.clear();
            self.read.clear();
        }
    }

    /// Records that a read has ended.
    pub fn read(&mut self, process: u32, node: u32, at: u64, moved: u64, took: u64) {
        let user = self.user(process, node);
        let (unopened, is_dirty) = (user.open == 0, user.dirty);
        let since = if unopened { 0 } else { user.opened_at };
        account(&mut user.reads, &mut user.last_read, at, moved, took);
        self.inherited |= unopened;
        if self.dirty > u32::from(is_dirty) {
            self.rule_out(&[COMMIT, SESSION], || {
                "it was read while another process, which had written to it, had it open".into()
            });
        }
        let other = match self.last_write {
            Some((time, last)) if last != process => Some(time),
            _ => self.other_write,
        };
        if other.is_some_and(|time| time > since) {
            self.rule_out(&[SESSION], || {
                "it was read through a descriptor that was older than another process's write"
                    .into()
            });
        }
        if moved == 0 {
            return;
        }
        let end = end_of(at, moved);
        self.end = self.end.max(end);
        let mut again = false;
        if !self.too_many {
            self.read.give(at, end, 0, |_| again = true);
        }
        if again {
            self.rule_out(&[ONCE], || "some of its bytes were read again".into());
        }
        self.bound();
    }

    /// Returns the reads of all processes.
    pub fn reads(&self) -> Access {
        let mut all = Access::default();
        self.users.values().for_each(|u| all.add(&u.reads));
        all
    }

    /// Returns the writes of all processes.
    pub fn writes(&self) -> Access {
        let mut all = Access::default();
        self.users.values().for_each(|u| all.add(&u.writes));
        all
    }

    /// Returns the node of the process that created the file.
    pub fn home(&self) -> Option<u32> {
        self.creator
            .and_then(|m| self.users.get(&m))
            .map(|u| u.node)
    }

    /// Returns the nodes on which the file was used.
    pub fn nodes(&self) -> BTreeSet<u32> {
        self.users.values().map(|u| u.node).collect()
    }

    /// Returns the number of offsets at which the same number of bytes was written repeatedly, if
    /// nearly all writes are at such offsets.
    fn rounds(&self, writes: &Access) -> Option<usize> {
        let again = self.places.values().filter(|p| p.count >= 3);
        let (places, times) = again.fold((0, 0u64), |(n, t), p| (n + 1, t + u64::from(p.count)));
        let most = times * 10 >= writes.count * 9;
        ((2..MAX_COUNTED_PLACES).contains(&places) && most).then_some(places)
    }

    /// Whether the file's use shows the pattern for which a control is meant.
    fn supports(&self, control: &str, reads: &Access, writes: &Access) -> bool {
        let written = writes.bytes > 0;
        let one_writer = self.writers.len() == 1;
        let others_read = (self.users.iter())
            .any(|(process, user)| user.reads.bytes > 0 && !self.writers.contains(process));
        match control {
            IMMUTABLE if written => {
                one_writer && self.laminated && (others_read || self.end >= LARGE)
            }
            IMMUTABLE => reads.bytes > 0 && self.opens > 1,
            APPEND => written && self.appends >= 2 && !others_read,
            EXCLUSIVE => self.creator.is_some() && self.handovers <= 1,
            EXCLUSIVE_NODE => self.creator.is_some() && self.nodes().len() == 1,
            COMMIT => written,
            SESSION => written && self.most_dirty <= 1,
            ONCE => written && reads.bytes > 0 && self.end >= LARGE,
            ROLLBACK => one_writer && self.rounds(writes).is_some(),
            _ => false,
        }
    }

    /// Records that the file's size was set to `end` (`is_size`), or that bytes up to `end` were
    /// allocated or zeroed.
    pub fn resized(&mut self, (process, node): (u32, u32), time: u64, end: u64, is_size: bool) {
        let size = is_size.then_some(end);
        // Setting the size to its current value changes nothing.
        if size.is_some() && size == self.size {
            return;
        }
        let user = self.user(process, node);
        let is_open = user.open > 0;
        if is_open && !std::mem::replace(&mut user.dirty, true) {
            self.dirty += 1;
            self.most_dirty = self.most_dirty.max(self.dirty);
        }
        self.rule_out(&[APPEND], || {
            "its size was set, or bytes of it made zeros".into()
        });
        let others = self.open_processes > u32::from(is_open);
        let used =
            self.laminated || self.read_only_before || self.writers.iter().any(|&w| w != process);
        if used || self.users.values().any(|u| u.reads.bytes > 0) {
            self.rule_out(&[IMMUTABLE], || {
                "its size was set after it had been used".into()
            });
        }
        if others {
            self.rule_out(&[COMMIT, SESSION], || {
                "its size was set while another process had it open".into()
            });
        }
        self.rule_out(&[ONCE], || "its size was set".into());
        self.writers.insert(process);
        self.end = self.end.max(end);
        self.size = size.or(self.size.map(|before| before.max(end)));
        match self.last_write {
            Some((_, last)) if last == process => {}
            before => self.other_write = before.map(|(time, _)| time),
        }
        self.last_write = Some((time, process));
    }

    /// Records that a process has mapped the file. `changes`: the mapping can be written.
    pub fn mapped(&mut self, process: u32, node: u32, changes: bool) {
        self.user(process, node);
        self.mapped = true;
        if changes {
            self.writers.insert(process);
            self.rule_out(&[IMMUTABLE], || "it was mapped for writing".into());
        }
    }

    /// Rules out controls that may be contradicted by uses without events, such as reads through a
    /// mapping.
    fn doubts(&mut self) {
        if self.mapped {
            if !self.writers.is_empty() {
                self.rule_out(&[APPEND], || {
                    "it was mapped: what was written through the mapping isn't recorded".into()
                });
            }
            self.rule_out(&[ONCE], || {
                "it was mapped: what was read through the mapping isn't recorded".into()
            });
            if self.most_open > 1 {
                self.rule_out(&[COMMIT, SESSION], || {
                    "processes had it open at once, and one of them mapped it".into()
                });
            }
        }
        if self.inherited && self.openers.len() > 1 {
            self.rule_out(&[EXCLUSIVE, EXCLUSIVE_NODE], || {
                "descriptors of it were inherited or duplicated: who had it open isn't known".into()
            });
        }
        if self.too_many {
            self.rule_out(&[ONCE], || {
                "it was used in too many pieces to compare".into()
            });
            if self.writers.len() > 1 {
                self.rule_out(&[COMMIT, SESSION], || {
                    "it was written in too many pieces to compare".into()
                });
            }
        }
    }

    /// Returns the file as a group of one file, with verdicts. `path` is for messages.
    pub fn judge(&mut self, path: &str) -> Group {
        self.doubts();
        let (reads, writes) = (self.reads(), self.writes());
        let mut verdicts = BTreeMap::new();
        for control in ALL {
            let verdict = match self.against.get(control) {
                Some(why) => Verdict {
                    against: 1,
                    example: Some(format!("{path}: {why}")),
                    supports: 0,
                },
                None => Verdict {
                    supports: self.supports(control, &reads, &writes).into(),
                    ..Verdict::default()
                },
            };
            verdicts.insert(control.to_owned(), verdict);
        }
        let home = self.home();
        let mut by_node: BTreeMap<u32, u64> = BTreeMap::new();
        for user in self.users.values().filter(|u| Some(u.node) != home) {
            *by_node.entry(user.node).or_default() += user.reads.bytes;
        }
        let once = |bytes: u64| bytes.min(self.end);
        let nodes = self.nodes().len() as u64;
        Group {
            files: 1,
            created: self.creator.is_some().into(),
            opens: self.opens,
            largest: self.end,
            nodes_of_a_file: nodes,
            processes_of_a_file: self.users.len() as u64,
            read_again: by_node.values().map(|&b| b - once(b)).sum(),
            fetched: by_node.values().map(|&b| once(b).div_ceil(1 << 20)).sum(),
            reads,
            writes,
            verdicts,
            ..Group::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(flags: OFlags) -> u32 {
        flags.bits()
    }

    fn judged(usage: &mut Usage) -> BTreeMap<String, Verdict> {
        usage.judge("/f").verdicts
    }

    fn new() -> u32 {
        flags(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    fn write(usage: &mut Usage, process: u32, time: u64, at: u64, n: u64) {
        usage.write_begins(process, process);
        usage.wrote(process, time, at, n, 10);
    }

    #[test]
    fn rollback_is_for_bytes_that_are_written_again_in_the_same_lengths() {
        for grows in [0, 7] {
            let mut f = Usage::default();
            f.opened(1, 1, 1, new());
            for round in 0..10 {
                for at in [0, 4096, 8192] {
                    write(&mut f, 1, 2 + round, at, 100 + round * grows);
                }
            }
            let verdict = &judged(&mut f)[ROLLBACK];
            assert_eq!(verdict.supports, u64::from(grows == 0), "{grows}");
        }
    }

    #[test]
    fn a_file_that_is_written_again_is_not_immutable() {
        let read = flags(OFlags::RDONLY);
        // In the cases 0 to 3, the file is changed: by a second open, after a read, by another
        // process, by an open that truncates it. In case 4, it is only read.
        for case in 0..5 {
            let mut f = Usage::default();
            f.opened(1, 1, 1, new());
            write(&mut f, 1, 2, 0, LARGE);
            match case {
                0 => {
                    f.closed(1);
                    f.opened(1, 1, 3, flags(OFlags::RDWR));
                }
                1 => {
                    f.read(1, 1, 0, 10, 5);
                    write(&mut f, 1, 4, LARGE, 10);
                }
                2 => {
                    f.opened(2, 2, 3, flags(OFlags::WRONLY));
                    write(&mut f, 2, 4, LARGE, 10);
                }
                3 => {
                    f.closed(1);
                    f.opened(
                        2,
                        2,
                        3,
                        flags(OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC),
                    );
                }
                _ => {
                    f.closed(1);
                    f.opened(2, 2, 3, read);
                    f.read(2, 2, 0, 10, 5);
                    f.closed(2);
                }
            }
            let verdicts = judged(&mut f);
            let immutable = &verdicts[IMMUTABLE];
            assert_eq!(immutable.against, u64::from(case < 4), "case {case}");
            assert_eq!(immutable.supports, u64::from(case == 4), "case {case}");
        }
    }

    #[test]
    fn what_is_read_while_it_is_written_stays_sequential() {
        let read = flags(OFlags::RDONLY);
        for closes in [false, true] {
            for opens_after in [false, true] {
                let mut f = Usage::default();
                f.opened(1, 1, 1, new());
                if !opens_after {
                    f.opened(2, 2, 2, read);
                }
                write(&mut f, 1, 3, 0, 100);
                if closes {
                    f.closed(1);
                }
                if opens_after {
                    f.opened(2, 2, 4, read);
                }
                f.read(2, 2, 0, 100, 5);
                let verdicts = judged(&mut f);
                assert_eq!(verdicts[COMMIT].against, u64::from(!closes));
                let session = closes && opens_after;
                assert_eq!(verdicts[SESSION].against, u64::from(!session));
            }
        }
    }

    #[test]
    fn exclusive_needs_that_nobody_met_anybody() {
        let mut f = Usage::default();
        f.opened(1, 1, 1, new());
        f.closed(1);
        f.opened(2, 1, 2, new());
        f.closed(2);
        assert_eq!(judged(&mut f)[EXCLUSIVE].supports, 1);
        f.opened(2, 1, 3, new());
        f.opened(1, 1, 4, new());
        let verdicts = judged(&mut f);
        assert_eq!(verdicts[EXCLUSIVE].against, 1);
        assert_eq!(verdicts[EXCLUSIVE_NODE].against, 0);
        // A child may have inherited a descriptor, so it isn't known which processes had the file
        // open.
        let mut f = Usage::default();
        f.opened(1, 1, 1, new());
        f.closed(9);
        assert_eq!(judged(&mut f)[EXCLUSIVE].against, 0);
        f.closed(1);
        f.opened(2, 1, 3, 0);
        assert_eq!(judged(&mut f)[EXCLUSIVE].against, 1);
    }

    #[test]
    fn append_needs_every_write_at_the_end() {
        let mut f = Usage::default();
        f.opened(1, 1, 1, new());
        write(&mut f, 1, 2, 0, 10);
        write(&mut f, 1, 3, 10, 10);
        write(&mut f, 1, 4, AT_END, 10);
        assert_eq!(judged(&mut f)[APPEND].supports, 1);
        let mut g = Usage::default();
        g.opened(1, 1, 1, new());
        write(&mut g, 1, 2, 0, 10);
        g.resized((1, 1), 3, 10, true);
        assert_eq!(judged(&mut g)[APPEND].against, 0);
        g.resized((1, 1), 3, 5, true);
        let verdicts = judged(&mut g);
        assert_eq!(verdicts[APPEND].against, 1);
        assert_eq!(verdicts[IMMUTABLE].against, 0);
        g.closed(1);
        g.resized((2, 2), 4, 0, true);
        assert_eq!(judged(&mut g)[IMMUTABLE].against, 1);
        write(&mut f, 1, 5, 5, 2);
        let verdict = &judged(&mut f)[APPEND];
        assert_eq!(verdict.against, 1);
        let why = verdict.example.clone().unwrap();
        assert_eq!(why, "/f: it was written to at 5, when its end was at 30");
        // A file that existed before, so that its size isn't known.
        let mut f = Usage::default();
        f.opened(1, 1, 1, flags(OFlags::RDWR));
        write(&mut f, 1, 2, 0, 10);
        assert_eq!(judged(&mut f)[APPEND].against, 1);
    }
}
