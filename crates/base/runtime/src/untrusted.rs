//! Access to files of settings, and to files in directories that others can change. Reading takes
//! a whole file, within limits of time and memory. Creating a file never follows what others have
//! put at its path.
//!
//! A FIFO or a device at the path is refused unread, also behind a symbolic link ([`Links::Named`]
//! accepts a FIFO). A file longer than the limit is refused, also if it grows during the read.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// Maximum length of a file of settings, or of records that people or this program write. Bytes.
pub const MAX_SETTINGS: u64 = 16 << 20;

/// How long a read waits for the next bytes of a FIFO.
const FIFO_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the path may be a symbolic link or a FIFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Symbolic links are followed, and a FIFO is read: `--config <(...)`. A read fails where the
    /// FIFO is silent for 10 s. For files that a user names to a command.
    Named,
    /// Symbolic links are followed. For files at fixed paths, and for those that a service reads.
    Follow,
    /// Symbolic links are refused. For files in directories that others can change.
    Refuse,
}

/// Opens a regular file for reading, without waiting. Reads from the result don't wait either: of a
/// FIFO, use [`read`].
///
/// # Errors
/// As open(2); [`ErrorKind::InvalidInput`] if it isn't a regular file.
pub fn open(path: &Path, links: Links) -> Result<File> {
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    // The type is checked before the open as well, since opening a device may have effects.
    let looked = match links {
        Links::Named | Links::Follow => rustix::fs::stat(path),
        Links::Refuse => rustix::fs::lstat(path),
    };
    let takes_fifo = links == Links::Named;
    check_kind(looked?.st_mode, takes_fifo)?;
    let file: OwnedFd = rustix::fs::open(path, flags, Mode::empty())?;
    check_kind(fstat(&file)?.st_mode, takes_fifo)?;
    Ok(file.into())
}

fn check_kind(mode: u32, takes_fifo: bool) -> Result<()> {
    let what = match FileType::from_raw_mode(mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Fifo if takes_fifo => return Ok(()),
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        _ => "a device",
    };
    let text = format!("it is {what}, not a regular file");
    Err(Error::new(ErrorKind::InvalidInput, text))
}

/// Returns the content of a regular file of at most `limit` bytes.
///
/// # Errors
/// As [`open`]; [`ErrorKind::FileTooLarge`]; [`ErrorKind::TimedOut`] if a FIFO is silent.
pub fn read(path: &Path, links: Links, limit: u64) -> Result<Vec<u8>> {
    read_within(path, links, limit, FIFO_TIMEOUT)
}

/// As [`read`], with a limit to the silence of a FIFO.
fn read_within(path: &Path, links: Links, limit: u64, timeout: Duration) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut from = open(path, links)?.take(limit + 1);
    loop {
        // Without a writer so far, a FIFO's read would return at once, as at its end: poll waits for
        // the first one.
        if FileType::from_raw_mode(fstat(from.get_ref())?.st_mode) == FileType::Fifo {
            wait_for_bytes(from.get_ref(), timeout)?;
        }
        match from.read_to_end(&mut bytes) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            read => {
                read?;
                break;
            }
        }
    }
    if bytes.len() as u64 > limit {
        let text = format!("it is longer than {limit} bytes");
        return Err(Error::new(ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// Waits until a FIFO has bytes, or its last writer has closed it.
fn wait_for_bytes(fifo: &File, timeout: Duration) -> Result<()> {
    let limit = Timespec::try_from(timeout).ok();
    loop {
        match poll(&mut [PollFd::new(fifo, PollFlags::IN)], limit.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) => {
                let seconds = timeout.as_secs_f64();
                let text = format!("it is a FIFO into which nothing was written for {seconds} s");
                return Err(Error::new(ErrorKind::TimedOut, text));
            }
            polled => return Ok(polled.map(drop)?),
        }
    }
}

/// As [`read`], but returns text.
///
/// # Errors
/// As [`read`]; [`ErrorKind::InvalidData`] for text that isn't UTF-8.
pub fn read_text(path: &Path, links: Links, limit: u64) -> Result<String> {
    let bytes = read(path, links, limit)?;
    String::from_utf8(bytes).map_err(|_| Error::new(ErrorKind::InvalidData, "it isn't UTF-8"))
}

/// Creates a file for writing. An object at the path is removed first, and so neither followed nor
/// written to.
///
/// # Errors
/// As unlink(2) and open(2).
pub fn create(path: &Path, mode: u32) -> Result<File> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file: OwnedFd = rustix::fs::open(path, flags, Mode::from_raw_mode(mode))?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_short_regular_files_are_read() {
        let top = std::env::temp_dir().join(format!("fb-untrusted-{}", std::process::id()));
        fs::create_dir_all(&top).unwrap();
        let at = |name: &str| top.join(name);
        fs::write(at("file"), "12345").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        for links in [Links::Follow, Links::Refuse] {
            assert_eq!(read(&at("file"), links, 5).unwrap(), b"12345");
            let kind = |name: &str| read(&at(name), links, 4).unwrap_err().kind();
            assert_eq!(kind("file"), ErrorKind::FileTooLarge);
            assert_eq!(kind("none"), ErrorKind::NotFound);
            for refused in ["zero", "fifo", "."] {
                assert_eq!(kind(refused), ErrorKind::InvalidInput, "{refused}");
            }
        }
        assert!(read(&at("link"), Links::Follow, 5).is_ok());
        // A user may name a FIFO, but no device.
        let fifo = at("fifo");
        let writer = std::thread::spawn(move || fs::write(fifo, "12345").unwrap());
        assert_eq!(read(&at("fifo"), Links::Named, 5).unwrap(), b"12345");
        writer.join().unwrap();
        // Bytes that come with pauses are read to the end of the last writer.
        let mut slow = fs::OpenOptions::new();
        let mut slow = slow.read(true).write(true).open(at("fifo")).unwrap();
        let writer = std::thread::spawn(move || {
            for part in ["12", "345"] {
                std::io::Write::write_all(&mut slow, part.as_bytes()).unwrap();
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        assert_eq!(read(&at("fifo"), Links::Named, 5).unwrap(), b"12345");
        writer.join().unwrap();
        let silent = read_within(&at("fifo"), Links::Named, 5, Duration::from_millis(50));
        assert_eq!(silent.unwrap_err().kind(), ErrorKind::TimedOut);
        let device = read(&at("zero"), Links::Named, 5).unwrap_err();
        assert_eq!(device.kind(), ErrorKind::InvalidInput);
        assert!(read(&at("link"), Links::Refuse, 5).is_err());
        create(&at("link"), 0o600).unwrap();
        assert_eq!(read(&at("link"), Links::Refuse, 0).unwrap(), b"");
        assert_eq!(read(&at("file"), Links::Refuse, 5).unwrap(), b"12345");
        fs::remove_dir_all(&top).unwrap();
    }
}
