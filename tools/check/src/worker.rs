//! A worker process: carries out random operations while other workers do, and records each with
//! its times and result.

use crate::calls::{self, Result};
use crate::memory::{Command, Shared, wait, wake};
use crate::operation::*;
use crate::options::Locks;
use crate::random::Random;
use crate::theme::Theme;
use crate::weak::Weak;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// Number of slots for open files of random operations. [`LOOKING`] is the slot for observing all
/// files.
const SLOTS: u8 = 3;
const LOOKING: u8 = 9;

struct Open {
    fd: i32,
    append: bool,
    /// Whether the worker holds a flock through `fd`. If so, it only requests LOCK_UN through `fd`:
    /// to convert a flock, Linux first releases it, and may then fail to get the other kind.
    locked: bool,
}

pub struct Worker {
    shared: &'static Shared,
    me: usize,
    top: String,
    /// The path of the round's directory.
    dir: String,
    cell: usize,
    most: u64,
    locks: Locks,
    weak: Weak,
    open: BTreeMap<u8, Open>,
    phase: u32,
    index: usize,
    /// Whether a node couldn't be reached. If so, the worker does no more operations in this phase.
    cut: bool,
    buffer: Vec<u8>,
}

impl Worker {
    pub fn new(
        shared: &'static Shared,
        me: usize,
        top: &str,
        cell: usize,
        most: u64,
        locks: Locks,
        weak: Weak,
    ) -> Worker {
        Worker {
            shared,
            me,
            top: top.into(),
            dir: String::new(),
            cell,
            most,
            locks,
            weak,
            open: BTreeMap::new(),
            phase: 0,
            index: 0,
            cut: false,
            buffer: Vec::new(),
        }
    }

    /// Carries out the driver's commands until the end.
    pub fn work(&mut self) -> std::result::Result<(), String> {
        let own = &self.shared.worker[self.me];
        let parent = calls::parent();
        own.pid.store(std::process::id(), Relaxed);
        self.phase = self.shared.phase.load(Acquire);
        self.dir = self.round();
        loop {
            own.phase.store(self.phase, Release);
            self.shared.ended.fetch_add(1, Release);
            wake(&self.shared.ended);
            let mut spins = 0;
            while self.shared.phase.load(Acquire) == self.phase {
                spins += 1;
                if spins < 20 {
                    calls::give_way();
                } else {
                    wait(&self.shared.phase, self.phase, Duration::from_secs(1));
                    if calls::parent() != parent {
                        return Err("the process that started this worker has ended".into());
                    }
                }
            }
            self.phase = self.shared.phase.load(Acquire);
            own.count.store(0, Relaxed);
            (self.index, self.cut) = (0, false);
            let is_chosen = self.shared.who.load(Relaxed) as usize == self.me;
            match self.shared.command.load(Relaxed) {
                c if c == Command::Begin as u32 => self.begin(is_chosen)?,
                c if c == Command::Work as u32 => self.randomly(),
                c if c == Command::Observe as u32 => {
                    if is_chosen {
                        self.look_at_all();
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    fn round(&self) -> String {
        let round = self.shared.round.load(Relaxed);
        format!("{}/r{}-{round}", self.top, self.shared.seed.load(Relaxed))
    }

    fn begin(&mut self, is_chosen: bool) -> std::result::Result<(), String> {
        for open in std::mem::take(&mut self.open).into_values() {
            let _ = self.weak.face().close(open.fd);
        }
        let round = self.round();
        let before = std::mem::replace(&mut self.dir, round);
        if !is_chosen {
            return Ok(());
        }
        let since = calls::now();
        let mut again = false;
        loop {
            match self.weak.face().mkdir(&self.dir) {
                Ok(_) => break,
                Err(libc::EEXIST) if again => break,
                // In a new round after a failure, the node may still be unreachable: try again.
                Err(e) if lost(e) && calls::now() - since < 60_000_000_000 => {
                    again = true;
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(e) => {
                    return Err(format!(
                        "mkdir {}: {}",
                        self.dir,
                        std::io::Error::from_raw_os_error(e)
                    ));
                }
            }
        }
        if before != self.dir {
            self.weak.face().remove_all(&before);
        }
        Ok(())
    }

    fn randomly(&mut self) {
        let seed = self.shared.seed.load(Relaxed);
        let mut common = Random::new(seed ^ (u64::from(self.phase) << 20));
        let mut own =
            Random::new(seed ^ (u64::from(self.phase) << 20) ^ ((self.me as u64 + 1) << 56));
        let theme = Theme::new(&mut common, self.most);
        // All workers begin at once: the first ones wait for the others, at most 3 ms.
        self.shared.begun.fetch_add(1, Relaxed);
        let since = calls::now();
        while self.shared.begun.load(Relaxed) < self.shared.workers.load(Relaxed)
            && calls::now() - since < 3_000_000
        {
            calls::give_way();
        }
        for _ in 0..theme.operations {
            if own.once_in(3) {
                let until = calls::now() + own.below(30_000);
                while calls::now() < until {
                    std::hint::spin_loop();
                }
            }
            self.one(&theme, &mut own);
            if self.cut {
                break;
            }
        }
    }

    /// Does one random operation; or two, if a slot for an open file must be emptied first.
    fn one(&mut self, theme: &Theme, random: &mut Random) {
        let mut operation = theme.operation(random);
        operation.call = match (operation.call, self.locks) {
            (Call::Flock | Call::Ofd | Call::Range, Locks::None) => Call::Fstat,
            (Call::Ofd | Call::Range, Locks::OneKind) if self.me.is_multiple_of(2) => Call::Ofd,
            (Call::Ofd, Locks::OneKind) => Call::Range,
            (call, _) => call,
        };
        operation.slot = random.below(u64::from(SLOTS)) as u8;
        if operation.call == Call::Open {
            if self.open.contains_key(&operation.slot) {
                self.close(operation.slot);
            }
        } else if operation.call.needs_open() {
            // Choose a slot with an open file, if there is one.
            let slots: Vec<u8> = self.open.keys().copied().filter(|s| *s < SLOTS).collect();
            if slots.is_empty() {
                operation = Operation {
                    slot: operation.slot,
                    path: theme.file(random),
                    flags: CREATE | if random.once_in(2) { APPEND } else { 0 },
                    ..Operation::of(Call::Open)
                };
            } else {
                operation.slot = *random.of(&slots);
            }
        }
        if !self.cut {
            self.carry_out(operation);
        }
    }

    fn close(&mut self, slot: u8) {
        self.carry_out(Operation {
            slot,
            ..Operation::of(Call::Close)
        });
    }

    /// Carries out an operation, and records it before and after.
    fn carry_out(&mut self, mut o: Operation) -> Operation {
        if self.cut || self.index >= crate::memory::OPERATIONS {
            return o;
        }
        let index = self.index;
        self.index += 1;
        o.id = Operation::number(self.phase, self.me, index);
        if let Some(open) = self.open.get(&o.slot) {
            match o.call {
                // To a descriptor with O_APPEND, every write appends.
                Call::Write if open.append => o.call = Call::Append,
                Call::Append if !open.append => o.call = Call::Write,
                Call::Flock if open.locked => o.flags = UNLOCK,
                Call::Flock if o.flags & UNLOCK != 0 => o.flags = 0,
                _ => {}
            }
        }
        o.value = match o.call {
            Call::Write | Call::Append => u64::from(o.id) << 8,
            _ => 0,
        };
        let own = &self.shared.worker[self.me];
        o.start = calls::now();
        own.note(index, &o);
        if let Err(e) = self.call(&mut o) {
            o.errno = e;
        }
        o.end = calls::now();
        own.note(index, &o);
        self.cut = lost(o.errno);
        o
    }

    fn path(&self, path: &Path) -> String {
        let mut text = self.dir.clone();
        for name in path.names() {
            text.push('/');
            text.push_str(NAMES[usize::from(*name)]);
        }
        text
    }

    fn call(&mut self, o: &mut Operation) -> Result<()> {
        let path = self.path(&o.path);
        let fd = self.open.get(&o.slot).map_or(-1, |open| open.fd);
        match o.call {
            Call::Open => {
                let mut flags = libc::O_RDWR;
                for (bit, flag) in [
                    (CREATE, libc::O_CREAT),
                    (EXCLUSIVE, libc::O_EXCL),
                    (TRUNCATE, libc::O_TRUNC),
                    (APPEND, libc::O_APPEND),
                ] {
                    if o.flags & bit != 0 {
                        flags |= flag;
                    }
                }
                let fd = self.weak.open(&path, flags)?;
                self.open.insert(
                    o.slot,
                    Open {
                        fd,
                        append: o.flags & APPEND != 0,
                        locked: false,
                    },
                );
            }
            Call::Close => {
                self.open.remove(&o.slot);
                self.weak.forget(fd);
                self.weak.face().close(fd)?;
            }
            Call::Write | Call::Append => {
                self.fill(o.value, o.n);
                let bytes = &self.buffer;
                let n = if o.call == Call::Append {
                    self.weak.append(fd, bytes)?
                } else {
                    self.weak
                        .face()
                        .write_at(fd, bytes, u64::from(o.at) * self.cell as u64)?
                };
                o.count = if n % self.cell == 0 {
                    (n / self.cell) as u32
                } else {
                    u32::MAX
                };
            }
            Call::Read => self.read(fd, o)?,
            Call::Truncate => {
                self.weak
                    .face()
                    .truncate(fd, u64::from(o.n) * self.cell as u64)?;
            }
            Call::Fstat | Call::Stat => {
                let s = if o.call == Call::Fstat {
                    self.weak.fstat(fd)?
                } else {
                    self.weak.stat(&path)?
                };
                o.directory = s.directory;
                o.size = if s.directory {
                    0
                } else if s.size % self.cell as u64 == 0 {
                    (s.size / self.cell as u64) as u32
                } else {
                    u32::MAX
                };
                (o.links, o.inode) = (s.links, s.inode);
            }
            Call::Unlink => self.weak.face().unlink(&path)?,
            Call::Link => {
                let to = self.path(&o.to);
                self.weak.face().link(&path, &to)?;
            }
            Call::Rename => {
                let to = self.path(&o.to);
                self.weak.rename(&path, &to)?;
            }
            Call::Exchange => {
                let to = self.path(&o.to);
                self.weak.exchange(&path, &to)?;
            }
            Call::Mkdir => self.weak.face().mkdir(&path)?,
            Call::Rmdir => self.weak.face().rmdir(&path)?,
            Call::List => {
                for name in self.weak.face().list(&path)? {
                    let bit = NAMES
                        .iter()
                        .position(|n| n.as_bytes() == name)
                        .map_or(1 << 30, |n| 1 << n);
                    // No model allows a name that is listed twice, or that no operation created:
                    // bits 31 and 30.
                    o.listed |= if o.listed & bit != 0 { 1 << 31 } else { bit };
                }
            }
            Call::Flock => {
                let what = match o.flags {
                    f if f & UNLOCK != 0 => libc::LOCK_UN,
                    f if f & SHARED != 0 => libc::LOCK_SH,
                    _ => libc::LOCK_EX,
                };
                self.weak.flock(fd, what)?;
                if let Some(open) = self.open.get_mut(&o.slot) {
                    open.locked = what != libc::LOCK_UN;
                }
            }
            Call::Ofd | Call::Range => {
                let command = if o.call == Call::Ofd {
                    libc::F_OFD_SETLK
                } else {
                    libc::F_SETLK
                };
                let kind = match o.flags {
                    f if f & UNLOCK != 0 => libc::F_UNLCK,
                    f if f & SHARED != 0 => libc::F_RDLCK,
                    _ => libc::F_WRLCK,
                };
                let face = self.weak.face();
                face.range_lock(fd, command, kind)
                    .map_err(|e| if e == libc::EACCES { libc::EAGAIN } else { e })?;
            }
            Call::Death => {}
        }
        Ok(())
    }

    /// Fills the buffer for a write: each word of a cell contains the cell's value, with the word's
    /// index in its upper bits.
    fn fill(&mut self, value: u64, cells: u32) {
        self.buffer.clear();
        for k in 0..u64::from(cells) {
            for word in 0..(self.cell / 8) as u64 {
                let number = value | (k + 1) | (word & 0xffff) << 48;
                self.buffer.extend_from_slice(&number.to_le_bytes());
            }
        }
    }

    fn read(&mut self, fd: i32, o: &mut Operation) -> Result<()> {
        self.buffer.clear();
        self.buffer.resize(o.n as usize * self.cell, 0xee);
        let n =
            self.weak
                .face()
                .read_at(fd, &mut self.buffer, u64::from(o.at) * self.cell as u64)?;
        if n % self.cell != 0 {
            o.count = u32::MAX;
            return Ok(());
        }
        o.count = (n / self.cell) as u32;
        for (k, cell) in self.buffer[..n].chunks_exact(self.cell).enumerate() {
            let mut seen: Vec<u64> = Vec::new();
            for (word, bytes) in cell.chunks_exact(8).enumerate() {
                let number = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
                let value = number & 0x0000_ffff_ffff_ffff;
                let value = match number {
                    0 => 0,
                    _ if number >> 48 == word as u64 & 0xffff && value != 0 => value,
                    _ => DAMAGED,
                };
                if !seen.contains(&value) {
                    seen.push(value);
                }
            }
            seen.truncate(VALUES);
            seen.sort_unstable();
            o.values[k] = seen.len() as u8;
            o.found[k][..seen.len()].copy_from_slice(&seen);
        }
        Ok(())
    }

    /// Observes all files and directories one after the other: lists, queries and reads them.
    fn look_at_all(&mut self) {
        let mine: Vec<u8> = self.open.keys().copied().collect();
        for slot in mine {
            self.look_at_open(slot);
        }
        self.look_below(&[]);
    }

    fn look_at_open(&mut self, slot: u8) {
        if self.is_full() {
            return;
        }
        for call in [Call::Fstat, Call::Read] {
            self.carry_out(Operation {
                slot,
                n: CELLS as u32,
                ..Operation::of(call)
            });
        }
    }

    /// Whether there is hardly any space for more recorded operations.
    fn is_full(&self) -> bool {
        self.index + 5 > crate::memory::OPERATIONS
    }

    fn look_below(&mut self, names: &[u8]) {
        let listed = self
            .carry_out(Operation {
                path: Path::new(names),
                ..Operation::of(Call::List)
            })
            .listed;
        if names.len() == DEPTH {
            return;
        }
        for name in 0..NAMES.len() as u8 {
            if self.is_full() {
                return;
            }
            let mut below = names.to_vec();
            below.push(name);
            let path = Path::new(&below);
            let stat = self.carry_out(Operation {
                path,
                ..Operation::of(Call::Stat)
            });
            if listed & (1 << name) == 0 || stat.errno != 0 {
                continue;
            }
            if stat.directory {
                self.look_below(&below);
                continue;
            }
            let open = Operation {
                path,
                slot: LOOKING,
                ..Operation::of(Call::Open)
            };
            if self.carry_out(open).errno == 0 && self.open.contains_key(&LOOKING) {
                self.look_at_open(LOOKING);
                if self.cut {
                    // Closes the file although the node is cut off, since no later operation may
                    // use it.
                    self.cut = false;
                    self.close(LOOKING);
                    self.cut = true;
                }
                self.close(LOOKING);
            }
        }
    }
}
