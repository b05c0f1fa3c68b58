//! Mounts and unmounts: as root by system calls, otherwise by `fusermount3`, which is set-user-ID
//! root.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::io::{Errno, IoSliceMut};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvFlags, SocketFlags, SocketType};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};

/// Programs that mount for users without privileges, newest first.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// The source shown by `df` and /proc/mounts.
    pub name: String,
    /// Whether other users may use the mount (as far as the files' modes allow).
    pub allow_other: bool,
    /// Whether the kernel refuses all changes.
    pub read_only: bool,
    /// Whether the kernel refuses to start programs from the mount.
    pub no_exec: bool,
    /// Whether set-user-ID and set-group-ID bits take effect; only for mounts by root.
    pub suid: bool,
    /// Whether devices can be opened; only for mounts by root.
    pub dev: bool,
}

impl Options {
    fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOEXEC, self.no_exec);
        flags.set(MountFlags::NOSUID, !self.suid);
        flags.set(MountFlags::NODEV, !self.dev);
        flags
    }
}

/// Mounts a pool at `dir`. Returns the descriptor of /dev/fuse.
///
/// # Errors
/// If the mount fails; the error's text is a sentence for users.
pub fn mount(dir: &Path, options: &Options) -> io::Result<OwnedFd> {
    if rustix::process::geteuid().is_root() {
        mount_as_root(dir, options)
    } else {
        mount_as_user(dir, options)
    }
}

fn mount_as_root(dir: &Path, o: &Options) -> io::Result<OwnedFd> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| error_in("can't open /dev/fuse", e))?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if o.allow_other {
        data += ",allow_other";
    }
    let data = std::ffi::CString::new(data).map_err(|_| io::ErrorKind::InvalidInput)?;
    let flags = o.flags();
    rustix::mount::mount(o.name.as_str(), dir, "fuse.forebay", flags, Some(&*data))
        .map_err(|e| error_in("mount(2)", e))?;
    Ok(device)
}

fn mount_as_user(dir: &Path, o: &Options) -> io::Result<OwnedFd> {
    let (ours, its) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        // No CLOEXEC: the helper inherits its end of the socket.
        SocketFlags::empty(),
        None,
    )?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC)?;
    let mut options = format!(
        "fsname={},subtype=forebay,default_permissions,nosuid,nodev",
        o.name
    );
    if o.allow_other {
        options += ",allow_other";
    }
    if o.read_only {
        options += ",ro";
    }
    if o.no_exec {
        options += ",noexec";
    }
    let mut tried = io::Error::from(io::ErrorKind::NotFound);
    for helper in HELPERS {
        let done = Command::new(helper)
            .args(["-o", &options, "--"])
            .arg(dir)
            .env("_FUSE_COMMFD", its.as_raw_fd().to_string())
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output();
        match done {
            Ok(done) if done.status.success() => return receive(&ours),
            Ok(done) => return Err(io::Error::other(text(&done.stderr))),
            Err(e) => tried = e,
        }
    }
    Err(io::Error::other(format!(
        "{} can't be started ({tried}); ordinary users need it to mount: it is in the package fuse3",
        HELPERS[0]
    )))
}

/// Receives the descriptor that a helper sends.
fn receive(from: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    rustix::net::recvmsg(
        from,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    ancillary
        .drain()
        .find_map(|m| match m {
            rustix::net::RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::other("fusermount3 sent no descriptor"))
}

/// Changes the kernel's flags of an existing mount to those of `options`, except that set-user-ID
/// bits and devices stay allowed if the mount allows them now. Only root may do so.
///
/// # Errors
/// EPERM; EBUSY if files are open for writing; EINVAL if nothing is mounted there.
pub fn remount(dir: &Path, options: &Options) -> io::Result<()> {
    let now = rustix::fs::statvfs(dir)?.f_flag;
    let mut flags = options.flags();
    if !now.contains(StatVfsMountFlags::NOSUID) {
        flags.remove(MountFlags::NOSUID);
    }
    if !now.contains(StatVfsMountFlags::NODEV) {
        flags.remove(MountFlags::NODEV);
    }
    Ok(rustix::mount::mount_remount(dir, flags, c"")?)
}

/// Unmounts `dir`; with `lazy` even while it is in use.
///
/// # Errors
/// EBUSY if it is in use; EINVAL if nothing is mounted there.
pub fn unmount(dir: &Path, lazy: bool) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags = if lazy {
            UnmountFlags::DETACH
        } else {
            UnmountFlags::empty()
        };
        return Ok(rustix::mount::unmount(dir, flags)?);
    }
    let mut tried = io::Error::from(io::ErrorKind::NotFound);
    for helper in HELPERS {
        let done = Command::new(helper)
            .arg(if lazy { "-uz" } else { "-u" })
            .arg("--")
            .arg(dir)
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .output();
        match done {
            Ok(done) if done.status.success() => return Ok(()),
            Ok(done) if text(&done.stderr).contains("busy") => return Err(Errno::BUSY.into()),
            Ok(done) => return Err(io::Error::other(text(&done.stderr))),
            Err(e) => tried = e,
        }
    }
    Err(tried)
}

/// Returns the source of the mount at `dir` from /proc/self/mountinfo, if it is a pool's mount.
pub fn mounted(dir: &Path) -> Option<String> {
    Some(mount_at(dir)?.0)
}

/// Returns the source and the device (`MAJOR:MINOR`) of the mount at `dir`, if it is a pool's
/// mount.
pub fn mount_at(dir: &Path) -> Option<(String, String)> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    table.lines().rev().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ');
        let device = left.nth(2)?;
        let at = unescaped(left.nth(1)?);
        let mut right = right.split(' ');
        let ours = right.next() == Some("fuse.forebay");
        let source = right.next()?;
        (Path::new(&at) == dir && ours).then(|| (source.to_owned(), device.to_owned()))
    })
}

/// Decodes the octal escapes of blanks, tabs, newlines and backslashes in mountinfo.
fn unescaped(text: &str) -> std::ffi::OsString {
    use std::os::unix::ffi::OsStringExt;
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let octal = (bytes[at] == b'\\')
            .then(|| text.get(at + 1..at + 4))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(octal.unwrap_or(bytes[at]));
        at += if octal.is_some() { 4 } else { 1 };
    }
    std::ffi::OsString::from_vec(out)
}

fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    text.strip_prefix("fusermount3: ")
        .unwrap_or(text)
        .to_owned()
}

fn error_in(what: &str, e: Errno) -> io::Error {
    let e = io::Error::from(e);
    io::Error::new(e.kind(), format!("{what}: {e}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn blanks_in_the_table_of_mounts() {
        assert_eq!(super::unescaped(r"/a\040b\134c/d\011"), "/a b\\c/d\t");
        assert_eq!(super::unescaped(r"/plain\"), r"/plain\");
    }
}
