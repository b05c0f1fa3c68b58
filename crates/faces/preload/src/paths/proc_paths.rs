//! Paths of what a process has open: `/proc/self/fd/N`, `/dev/stdin`, `/proc/self/cwd` and similar
//! ones, which lead to placeholders in the kernel; and `/proc/self/root`, from which a path may
//! lead to the prefix.

use crate::paths::prefix;
use crate::pool::{self, fds, placeholder, working_dir};
use crate::program::{process, settings};
use forebay_posix::{Errno, Fs, ObjectId};

/// The kinds of objects that the beginning of a path in /proc or /dev names.
#[derive(Debug, PartialEq, Eq)]
enum ProcPath {
    Descriptor(i32),
    WorkingDirectory,
    /// The root directory, followed by a path.
    Root,
    /// A descriptor of another process.
    OtherProcess(u32, i32),
}

/// The target, in the pool, of a path in /proc or /dev.
pub enum Named {
    /// The open file itself.
    Open(&'static Fs, u32),
    /// A path (field 2), relative to a directory (field 1).
    Beneath(&'static Fs, ObjectId, &'static [u8]),
}

fn number(text: &[u8]) -> Option<u32> {
    if text.is_empty() || text.len() > 9 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |n, d| n * 10 + u32::from(d - b'0')))
}

/// Splits a path into its first component and the rest.
fn cut(path: &[u8]) -> (&[u8], &[u8]) {
    path.split_at(path.iter().position(|&b| b == b'/').unwrap_or(path.len()))
}

/// Returns the object that the beginning of a path in /proc or /dev names, and the rest of the path
/// (empty, or from a `/` on).
fn parse(path: &[u8], me: impl FnOnce() -> u32) -> Option<(ProcPath, &[u8])> {
    match path {
        b"/dev/stdin" => return Some((ProcPath::Descriptor(0), b"")),
        b"/dev/stdout" => return Some((ProcPath::Descriptor(1), b"")),
        b"/dev/stderr" => return Some((ProcPath::Descriptor(2), b"")),
        _ => {}
    }
    if let Some(path) = path.strip_prefix(b"/dev/fd/") {
        let (n, rest) = cut(path);
        return Some((ProcPath::Descriptor(number(n)? as i32), rest));
    }
    let (who, mut rest) = cut(path.strip_prefix(b"/proc/")?);
    let other = match who {
        b"self" | b"thread-self" => None,
        _ => Some(number(who)?).filter(|&n| n != me()),
    };
    if let Some(task) = rest.strip_prefix(b"/task/") {
        let (thread, behind) = cut(task);
        number(thread)?;
        rest = behind;
    }
    if let Some(path) = rest.strip_prefix(b"/fd/") {
        let (n, rest) = cut(path);
        let fd = number(n)? as i32;
        return Some(match other {
            None => (ProcPath::Descriptor(fd), rest),
            Some(pid) => (ProcPath::OtherProcess(pid, fd), rest),
        });
    }
    if let Some(path) = rest.strip_prefix(b"/root") {
        return (other.is_none() && path.first() == Some(&b'/')).then_some((ProcPath::Root, path));
    }
    let rest = rest.strip_prefix(b"/cwd")?;
    (other.is_none() && rest.first().is_none_or(|&b| b == b'/'))
        .then_some((ProcPath::WorkingDirectory, rest))
}

/// Returns the target of a path in /proc or /dev, if it is in the pool. None for `/proc/self/cwd`
/// without a further component, which is a symbolic link (see [`is_working_directory`]).
///
/// # Errors
/// ENOTDIR for a path that continues after a file.
pub fn locate(path: &'static [u8]) -> Result<Option<Named>, Errno> {
    let (fs, open, rest) = match parse(path, process::own_pid) {
        None => return Ok(None),
        Some((ProcPath::WorkingDirectory, rest)) => {
            let at = pool::open_fs().and_then(|fs| Some((fs, working_dir::current(fs)?)));
            return Ok(match at {
                Some((fs, cwd)) if !rest.is_empty() => Some(inside(fs, cwd, rest)),
                _ => None,
            });
        }
        Some((ProcPath::Root, rest)) => {
            let beneath = settings::settings().and_then(|s| prefix::under(s.mount, rest));
            return match beneath {
                Some(beneath) => Ok(Some(inside(pool::fs()?, ObjectId::ROOT, beneath))),
                None => Ok(None),
            };
        }
        Some((ProcPath::Descriptor(fd), rest)) => match fds::pool_file(fd) {
            Some((fs, open)) => (fs, open, rest),
            None => return Ok(None),
        },
        Some((ProcPath::OtherProcess(pid, fd), rest)) => {
            match of_other_process(path, rest, pid, fd)? {
                Some((fs, open)) => (fs, open, rest),
                None => return Ok(None),
            }
        }
    };
    if rest.is_empty() {
        return Ok(Some(Named::Open(fs, open)));
    }
    let dir = fs.description(open);
    if !dir.is_dir() {
        return Err(Errno::NOTDIR);
    }
    Ok(Some(inside(fs, dir.id(), rest)))
}

fn inside(fs: &'static Fs, dir: ObjectId, rest: &'static [u8]) -> Named {
    let start = rest.iter().position(|&b| b != b'/').unwrap_or(rest.len());
    let rest = match &rest[start..] {
        b"" => b".",
        rest => rest,
    };
    Named::Beneath(fs, dir, rest)
}

/// Returns the working directory, if it lies in the pool and `path` is `/proc/self/cwd` or a
/// similar name.
pub fn is_working_directory(path: &[u8]) -> Option<(&'static Fs, ObjectId)> {
    if !path.starts_with(b"/proc/")
        || parse(path, process::own_pid) != Some((ProcPath::WorkingDirectory, b""))
    {
        return None;
    }
    let fs = pool::open_fs()?;
    Some((fs, working_dir::current(fs)?))
}

/// Returns the description of another process's descriptor, if that is a descriptor of this pool.
/// (The process may close it at any moment.)
fn of_other_process(
    path: &[u8],
    rest: &[u8],
    pid: u32,
    fd: i32,
) -> Result<Option<(&'static Fs, u32)>, Errno> {
    if !placeholder::leads_to_one(&path[..path.len() - rest.len()]) {
        return Ok(None);
    }
    let fs = pool::fs()?;
    let open = fs.descriptors().of_process(pid, fd);
    open.map(|open| Some((fs, open))).ok_or(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_name_open_files() {
        let parse = |p: &'static str| {
            parse(p.as_bytes(), || 77).map(|(m, r)| (m, std::str::from_utf8(r).unwrap()))
        };
        use ProcPath::*;
        assert_eq!(parse("/dev/stdin"), Some((Descriptor(0), "")));
        assert_eq!(parse("/dev/fd/12"), Some((Descriptor(12), "")));
        assert_eq!(parse("/proc/self/fd/3/a/b"), Some((Descriptor(3), "/a/b")));
        assert_eq!(parse("/proc/77/fd/3"), Some((Descriptor(3), "")));
        assert_eq!(parse("/proc/77/task/78/fd/3"), Some((Descriptor(3), "")));
        assert_eq!(parse("/proc/thread-self/fd/0"), Some((Descriptor(0), "")));
        assert_eq!(parse("/proc/5/fd/3"), Some((OtherProcess(5, 3), "")));
        assert_eq!(parse("/proc/self/cwd"), Some((WorkingDirectory, "")));
        assert_eq!(parse("/proc/self/cwd/"), Some((WorkingDirectory, "/")));
        assert_eq!(parse("/proc/self/root/fb/x"), Some((Root, "/fb/x")));
        assert_eq!(parse("/proc/77/task/78/root/fb"), Some((Root, "/fb")));
        for none in [
            "/dev/fd/",
            "/dev/fd/x",
            "/dev/stdin/x",
            "/proc/5/cwd/x",
            "/proc/self/cwdx",
            "/proc/self/root",
            "/proc/5/root/fb",
            "/proc/self/fd/-1",
            "/proc/self/fd",
            "/proc/self/status",
            "/proc/fd/3",
        ] {
            assert_eq!(parse(none), None, "{none}");
        }
    }
}
