//! What was done to the objects of a process, and why nothing was.

/// How many objects a [`Report`] has room for.
pub const MAX_OBJECTS: usize = 6;

/// Why nothing was installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Not on this processor architecture.
    Unsupported,
    /// It was installed before in this process.
    AlreadyInstalled,
    /// None of the objects that it patches is loaded.
    NoLibc,
    /// No memory for trampolines near the code (the kernel's error number).
    NoRoom(i32),
    /// The kernel refused to make code writable (its error number).
    Refused(i32),
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Error::Unsupported => {
                f.write_str("system calls can't be intercepted on this architecture")
            }
            Error::AlreadyInstalled => f.write_str("system calls are intercepted already"),
            Error::NoLibc => {
                f.write_str("no C library found whose system calls could be intercepted")
            }
            Error::NoRoom(e) => write!(
                f,
                "no memory for trampolines near the C library (error {e})"
            ),
            Error::Refused(e) => write!(
                f,
                "the kernel refused to make the C library's code writable (error {e})"
            ),
        }
    }
}

impl std::error::Error for Error {}

/// What was done to one object (`libc.so.6`, the loader, ...).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectReport {
    pub(crate) name: [u8; 32],
    /// `syscall` instructions found.
    pub found: u32,
    /// Those of them that should be patched: their number is wanted, or a clone, or unknown.
    pub wanted: u32,
    /// Those that were patched.
    pub patched: u32,
    /// Those that should have been and weren't, by number, one bit each.
    pub missed: [u64; 8],
    /// Those that should have been and weren't, whose number isn't known.
    pub missed_unknown: u32,
    /// The sites came from the cache and needn't be searched.
    pub cached: bool,
    /// The trampolines lie in a mapping of their own, because the library was loaded out of a
    /// jump's reach.
    pub far: bool,
}

impl ObjectReport {
    /// The object's file name, cut to 32 bytes.
    pub fn name(&self) -> &str {
        let end = self
            .name
            .iter()
            .position(|&b| b == 0)
            .unwrap_or(self.name.len());
        core::str::from_utf8(&self.name[..end]).unwrap_or("?")
    }
}

/// What [`install`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub(crate) objects: [ObjectReport; MAX_OBJECTS],
    pub(crate) count: usize,
    /// How long it took.
    pub microseconds: u64,
}

impl Report {
    /// The objects that were looked at.
    pub fn objects(&self) -> &[ObjectReport] {
        &self.objects[..self.count]
    }
}
