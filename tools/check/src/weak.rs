//! File systems with weaker promises, made from a good one, to test that the checker finds the
//! violations.

use crate::calls::{Face, Result, Stat};
use std::collections::HashMap;
use std::time::Duration;

/// Which promise is broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Nothing,
    /// A process caches the size of an open file for a while.
    CachedSize,
    /// A process caches the result of a look-up for a while.
    CachedNames,
    /// Appending reads the size, then writes at that offset.
    AppendBySize,
    /// O_EXCL checks whether the file exists, then creates it.
    CreateByLooking,
    /// Renaming over a file removes it first.
    RenameInTwo,
    /// An exchange is a sequence of renames, with a third name.
    ExchangeInTwo,
    /// Locks exclude only other locks of the same process.
    OwnLocks,
    /// With `--consistency`: a recorded commit isn't done.
    NoCommit,
}

pub const KINDS: [(&str, Kind); 8] = [
    ("cached-size", Kind::CachedSize),
    ("cached-names", Kind::CachedNames),
    ("append-by-size", Kind::AppendBySize),
    ("create-by-looking", Kind::CreateByLooking),
    ("rename-in-two", Kind::RenameInTwo),
    ("exchange-in-two", Kind::ExchangeInTwo),
    ("own-locks", Kind::OwnLocks),
    ("no-commit", Kind::NoCommit),
];

/// A worker's calls, some of which break a promise.
pub struct Weak {
    kind: Kind,
    face: Box<dyn Face>,
    sizes: HashMap<i32, (u64, u32)>,
    names: HashMap<String, u32>,
}

/// Gives other processes time between two steps that should be one step.
fn pause() {
    std::thread::sleep(Duration::from_micros(20));
}

impl Weak {
    /// Weakens the calls of `face` by `kind`.
    pub fn new(kind: Kind, face: Box<dyn Face>) -> Weak {
        Weak {
            kind,
            face,
            sizes: HashMap::new(),
            names: HashMap::new(),
        }
    }

    /// Returns the calls without the weakness.
    pub fn face(&mut self) -> &mut dyn Face {
        &mut *self.face
    }

    pub fn open(&mut self, path: &str, flags: i32) -> Result<i32> {
        if self.kind == Kind::CreateByLooking && flags & libc::O_EXCL != 0 {
            if self.face.stat(path).is_ok() {
                return Err(libc::EEXIST);
            }
            pause();
            return self.face.open(path, flags & !libc::O_EXCL);
        }
        self.face.open(path, flags)
    }

    pub fn append(&mut self, fd: i32, bytes: &[u8]) -> Result<usize> {
        if self.kind != Kind::AppendBySize {
            return self.face.write(fd, bytes);
        }
        let size = self.face.fstat(fd)?.size;
        pause();
        // On a descriptor with O_APPEND, Linux appends with pwrite, too.
        let again = self
            .face
            .open(&format!("/proc/self/fd/{fd}"), libc::O_WRONLY)?;
        let written = self.face.write_at(again, bytes, size);
        self.face.close(again)?;
        written
    }

    pub fn forget(&mut self, fd: i32) {
        self.sizes.remove(&fd);
    }

    pub fn fstat(&mut self, fd: i32) -> Result<Stat> {
        let mut stat = self.face.fstat(fd)?;
        if self.kind == Kind::CachedSize {
            let kept = self.sizes.entry(fd).or_insert((stat.size, 0));
            kept.1 += 1;
            if kept.1.is_multiple_of(4) {
                kept.0 = stat.size;
            }
            stat.size = kept.0;
        }
        Ok(stat)
    }

    pub fn stat(&mut self, path: &str) -> Result<Stat> {
        if self.kind == Kind::CachedNames {
            // Only the absence of the name is cached.
            let turn = self.names.entry(path.into()).or_insert(0);
            *turn = turn.saturating_sub(1);
            if *turn > 0 {
                return Err(libc::ENOENT);
            }
            let found = self.face.stat(path);
            if found.is_err() {
                *turn = 3;
            }
            return found;
        }
        self.face.stat(path)
    }

    pub fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        if self.kind == Kind::RenameInTwo && from != to && self.face.stat(from).is_ok() {
            let _ = self.face.unlink(to);
            pause();
        }
        self.face.rename(from, to)
    }

    pub fn exchange(&mut self, one: &str, other: &str) -> Result<()> {
        if self.kind == Kind::ExchangeInTwo {
            // If `one` is a file, it gets a third name meanwhile, which no other process knows.
            let kept = format!("{one}.{}", std::process::id());
            if self.face.stat(other).is_ok() && self.face.link(one, &kept).is_ok() {
                let moved = self.face.rename(other, one).and_then(|_| {
                    pause();
                    self.face.rename(&kept, other)
                });
                if moved.is_err() {
                    let _ = self.face.unlink(&kept);
                }
                return moved;
            }
        }
        self.face.exchange(one, other)
    }

    pub fn flock(&mut self, fd: i32, what: i32) -> Result<()> {
        if self.kind == Kind::OwnLocks {
            return Ok(());
        }
        self.face.flock(fd, what)
    }
}
