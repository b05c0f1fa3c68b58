//! An operation: its arguments, times and result. It lies in shared memory, so it contains no
//! pointers.

/// The names that operations use, for files and directories, in the directory of the round and in
/// its subdirectories.
pub const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Maximum number of components of a path.
pub const DEPTH: usize = 3;
/// Maximum number of cells of one write or read.
pub const CELLS: usize = 8;
/// Maximum number of different values that a read may report of one cell.
pub const VALUES: usize = 3;
/// The value of a cell that is neither all zeros nor the intact value of one write.
pub const DAMAGED: u64 = u64::MAX;

/// A path below the directory of the round, as indices of [`NAMES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Path {
    pub len: u8,
    pub names: [u8; DEPTH],
}

impl Path {
    pub fn new(names: &[u8]) -> Path {
        let mut all = [0; DEPTH];
        all[..names.len()].copy_from_slice(names);
        Path {
            len: names.len() as u8,
            names: all,
        }
    }

    pub fn names(&self) -> &[u8] {
        &self.names[..usize::from(self.len)]
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.len == 0 {
            return f.write_str(".");
        }
        let names: Vec<&str> = self
            .names()
            .iter()
            .map(|n| NAMES[usize::from(*n)])
            .collect();
        f.write_str(&names.join("/"))
    }
}

/// The system call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Call {
    #[default]
    Open,
    Close,
    /// Writes `n` cells at cell `at`; cell k of them, counted from 0, holds `value | k + 1`.
    Write,
    /// Writes `n` cells at the end.
    Append,
    Read,
    /// Sets the size to `n` cells.
    Truncate,
    Fstat,
    Stat,
    Unlink,
    Link,
    Rename,
    /// Exchanges two names.
    Exchange,
    Mkdir,
    Rmdir,
    List,
    /// flock, fcntl F_OFD_SETLK, and fcntl F_SETLK, on the whole file and without waiting.
    Flock,
    Ofd,
    Range,
    /// No call: the process was killed.
    Death,
}

impl Call {
    /// Whether the call moves names.
    pub fn renames(self) -> bool {
        matches!(self, Call::Rename | Call::Exchange)
    }

    /// Whether the call needs an open file.
    pub fn needs_open(self) -> bool {
        matches!(
            self,
            Call::Close
                | Call::Write
                | Call::Append
                | Call::Read
                | Call::Truncate
                | Call::Fstat
                | Call::Flock
                | Call::Ofd
                | Call::Range
        )
    }
}

pub const CREATE: u8 = 1;
pub const EXCLUSIVE: u8 = 2;
pub const TRUNCATE: u8 = 4;
pub const APPEND: u8 = 8;
/// Flag of locks.
pub const SHARED: u8 = 16;
pub const UNLOCK: u8 = 32;

/// One operation and its result.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Operation {
    pub call: Call,
    pub flags: u8,
    pub slot: u8,
    pub path: Path,
    pub to: Path,
    pub at: u32,
    pub n: u32,
    /// The operation's number, unique in a run: see [`Operation::number`]. Never 0.
    pub id: u32,
    /// Cell k of a write contains `value | k + 1`.
    pub value: u64,
    /// Times of a clock that all processes share. Nanoseconds. `end` is 0 until the operation has
    /// ended.
    pub start: u64,
    pub end: u64,
    /// The errno; 0 if the operation succeeded.
    pub errno: i32,
    /// Number of cells read or written.
    pub count: u32,
    /// Size of the file. Cells.
    pub size: u32,
    pub links: u32,
    pub inode: u64,
    pub directory: bool,
    /// Result of a listing: one bit for each name found.
    pub listed: u32,
    /// Result of a read: the different values found in each cell; 0 stands for zeros.
    pub found: [[u64; VALUES]; CELLS],
    pub values: [u8; CELLS],
}

impl Operation {
    pub fn of(call: Call) -> Operation {
        Operation {
            call,
            ..Operation::default()
        }
    }

    /// Returns an operation's number, made of the phase, the worker, and the operation's index
    /// among the worker's operations.
    pub fn number(phase: u32, worker: usize, index: usize) -> u32 {
        phase << 11 | (worker as u32) << 7 | index as u32
    }

    /// Whether the operation's number belongs to this phase.
    pub fn is_of(&self, phase: u32) -> bool {
        self.id >> 11 == phase << 11 >> 11
    }

    /// Whether the operation was cut off: it may have been carried out, may be carried out later,
    /// or never.
    pub fn unknown(&self) -> bool {
        self.end == 0 || self.call == Call::Death || lost(self.errno)
    }

    /// Whether the call changes nothing, so that an operation that failed can be ignored.
    pub fn only_looks(&self) -> bool {
        matches!(
            self.call,
            Call::Read | Call::Fstat | Call::Stat | Call::List
        ) || (self.call == Call::Open && self.flags & (CREATE | TRUNCATE) == 0)
    }

    /// Whether a cell showed more than one value.
    pub fn torn(&self) -> bool {
        self.values.iter().any(|n| *n > 1)
    }
}

/// Whether this is an error for a node that can't be reached, or that has lost the open files.
pub fn lost(errno: i32) -> bool {
    matches!(
        errno,
        libc::EIO
            | libc::EHOSTDOWN
            | libc::ETIMEDOUT
            | libc::EHOSTUNREACH
            | libc::ENOTCONN
            | libc::ESTALE
    )
}

fn error(errno: i32) -> String {
    let name = match errno {
        0 => "ok",
        libc::ENOENT => "ENOENT",
        libc::EEXIST => "EEXIST",
        libc::EISDIR => "EISDIR",
        libc::ENOTDIR => "ENOTDIR",
        libc::ENOTEMPTY => "ENOTEMPTY",
        libc::EINVAL => "EINVAL",
        libc::EAGAIN => "EAGAIN",
        libc::EPERM => "EPERM",
        libc::EIO => "EIO",
        libc::EHOSTDOWN => "EHOSTDOWN",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ESTALE => "ESTALE",
        libc::EBADF => "EBADF",
        _ => return std::io::Error::from_raw_os_error(errno).to_string(),
    };
    name.into()
}

/// Formats a cell's value for users.
pub fn shown(value: u64) -> String {
    match value {
        0 => "-".into(),
        DAMAGED => "DAMAGED".into(),
        v => format!("{}.{}", (v >> 8) & 0xffff_ffff, v & 0xff),
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut flags = String::new();
        for (bit, name) in [
            (CREATE, " CREAT"),
            (EXCLUSIVE, " EXCL"),
            (TRUNCATE, " TRUNC"),
            (APPEND, " APPEND"),
            (SHARED, " shared"),
            (UNLOCK, " unlock"),
        ] {
            if self.flags & bit != 0 {
                flags.push_str(name);
            }
        }
        write!(f, "{:?}", self.call)?;
        match self.call {
            Call::Open => write!(f, " {} as {}{flags}", self.path, self.slot)?,
            Call::Write | Call::Read => write!(f, " {} cells {}+{}", self.slot, self.at, self.n)?,
            Call::Append | Call::Truncate => write!(f, " {} cells {}", self.slot, self.n)?,
            Call::Close | Call::Fstat => write!(f, " {}", self.slot)?,
            Call::Flock | Call::Ofd | Call::Range => write!(f, " {}{flags}", self.slot)?,
            Call::Link | Call::Rename => write!(f, " {} to {}", self.path, self.to)?,
            Call::Exchange => write!(f, " {} and {}", self.path, self.to)?,
            Call::Death => {}
            _ => write!(f, " {}", self.path)?,
        }
        if matches!(self.call, Call::Write | Call::Append) {
            write!(f, " of {}", shown(self.value))?;
        }
        if self.end == 0 {
            return f.write_str(" = (no end)");
        }
        write!(f, " = {}", error(self.errno))?;
        if self.errno != 0 {
            return Ok(());
        }
        match self.call {
            Call::Read => {
                write!(f, ", {} cells:", self.count)?;
                for k in 0..(self.count as usize).min(CELLS) {
                    let values: Vec<String> = self.found[k][..usize::from(self.values[k])]
                        .iter()
                        .map(|v| shown(*v))
                        .collect();
                    write!(f, " {}", values.join("|"))?;
                }
                Ok(())
            }
            Call::Write | Call::Append => write!(f, ", {} cells", self.count),
            Call::Stat if self.directory => write!(f, ", directory, inode {}", self.inode),
            Call::Stat | Call::Fstat => write!(
                f,
                ", {} cells, {} links, inode {}",
                self.size, self.links, self.inode
            ),
            Call::List => {
                let names: Vec<&str> = (0..NAMES.len())
                    .filter(|n| self.listed & (1 << n) != 0)
                    .map(|n| NAMES[n])
                    .collect();
                write!(f, ": {}", names.join(" "))
            }
            _ => Ok(()),
        }
    }
}
