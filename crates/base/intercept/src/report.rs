//! The result of an installation: what was done to each object, or why nothing was.

/// Maximum number of objects in a [`Report`].
pub const MAX_OBJECTS: usize = 6;

/// Why nothing was installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// This processor architecture isn't supported.
    Unsupported,
    /// This process has an installation already.
    AlreadyInstalled,
    /// None of the objects to be patched is loaded.
    NoLibc,
    /// No memory for trampolines near the code (with the kernel's errno).
    NoRoom(i32),
    /// The kernel refused to make code writable (with its errno).
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

/// Result for one object (`libc.so.6`, the loader, ...).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectReport {
    pub(crate) name: [u8; 32],
    /// Number of `syscall` instructions found.
    pub found: u32,
    /// Number of sites to patch: their call number is wanted, that of a clone, or unknown.
    pub wanted: u32,
    /// Number of patched sites.
    pub patched: u32,
    /// Numbers of calls that should have been patched but weren't, one bit each.
    pub missed: [u64; 8],
    /// Number of sites with unknown call numbers that should have been patched but weren't.
    pub missed_unknown: u32,
    /// Whether the sites came from the cache.
    pub cached: bool,
    /// Whether the trampolines are in a separate mapping, because this library was loaded too far
    /// from the object for a jump.
    pub far: bool,
}

impl ObjectReport {
    /// The object's file name, truncated to 32 bytes.
    pub fn name(&self) -> &str {
        let end = self
            .name
            .iter()
            .position(|&b| b == 0)
            .unwrap_or(self.name.len());
        core::str::from_utf8(&self.name[..end]).unwrap_or("?")
    }
}

/// The result of [`install`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub(crate) objects: [ObjectReport; MAX_OBJECTS],
    pub(crate) count: usize,
    /// Duration of the installation. Microseconds.
    pub microseconds: u64,
}

impl Report {
    /// Returns the examined objects.
    pub fn objects(&self) -> &[ObjectReport] {
        &self.objects[..self.count]
    }
}
