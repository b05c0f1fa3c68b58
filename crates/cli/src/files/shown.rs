//! Formats attributes of files as `ls -l` does: modes, times, owners and sizes.

use crate::color::{BLUE, BOLD_GREEN, CYAN, YELLOW, painted};
use std::ffi::CStr;
use std::io::IsTerminal;

/// Joins `directory` and `name` to a path.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
    [directory, slash, name].concat()
}

/// Returns a name or path for printing: on a terminal, control characters are replaced.
pub fn printable(name: &[u8]) -> Vec<u8> {
    if !std::io::stdout().is_terminal() {
        return name.to_vec();
    }
    let text = String::from_utf8_lossy(name);
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect::<String>()
        .into()
}

/// Returns a name for printing, in the colour of its type.
pub fn coloured(name: &[u8], mode: u32) -> Vec<u8> {
    let name = printable(name);
    match mode & libc::S_IFMT {
        libc::S_IFDIR => painted(&name, BLUE),
        libc::S_IFLNK => painted(&name, CYAN),
        libc::S_IFREG if mode & 0o111 != 0 => painted(&name, BOLD_GREEN),
        libc::S_IFREG => name,
        _ => painted(&name, YELLOW),
    }
}

/// Formats a size as `ls -h` does, rounded up: `512`, `1.5K`, `64M`.
pub fn human(bytes: u64) -> String {
    let (mut unit, mut scale) = (0, 1u128);
    let bytes = u128::from(bytes);
    while bytes.div_ceil(scale) >= 1024 && unit < 6 {
        scale <<= 10;
        unit += 1;
    }
    if unit == 0 {
        return bytes.to_string();
    }
    let letter = char::from(b"BKMGTPE"[unit]);
    match (bytes * 10).div_ceil(scale) {
        tenths if tenths < 100 => format!("{}.{}{letter}", tenths / 10, tenths % 10),
        _ => format!("{}{letter}", bytes.div_ceil(scale)),
    }
}

pub fn kind_word(mode: u32) -> &'static str {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => "directory",
        libc::S_IFLNK => "symlink",
        libc::S_IFIFO => "fifo",
        libc::S_IFSOCK => "socket",
        libc::S_IFCHR => "character device",
        libc::S_IFBLK => "block device",
        _ => "file",
    }
}

/// Formats a mode as `drwxr-xr-x`, with set-id and sticky bits.
pub fn mode_text(mode: u32) -> String {
    let kind = match mode & libc::S_IFMT {
        libc::S_IFDIR => 'd',
        libc::S_IFLNK => 'l',
        libc::S_IFIFO => 'p',
        libc::S_IFSOCK => 's',
        libc::S_IFCHR => 'c',
        libc::S_IFBLK => 'b',
        _ => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, set, bare) in [
        (6, 0o4000, 's', 'S'),
        (3, 0o2000, 's', 'S'),
        (0, 0o1000, 't', 'T'),
    ] {
        let bits = mode >> shift & 7;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => bare,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Formats a time as `Nov  5 14:03`; as `Nov  5  2023` if it is in the future or more than half a
/// year ago.
pub fn time_text(seconds: i64, now: i64) -> String {
    const HALF_A_YEAR: i64 = 31_556_952 / 2;
    let recent = seconds <= now && seconds > now - HALF_A_YEAR;
    let format = if recent { c"%b %e %H:%M" } else { c"%b %e  %Y" };
    let mut text = [0u8; 64];
    // SAFETY: all pointers are to live, initialised memory of the sizes given.
    let n = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&seconds, &mut parts).is_null() {
            return seconds.to_string();
        }
        libc::strftime(
            text.as_mut_ptr().cast(),
            text.len(),
            format.as_ptr(),
            &parts,
        )
    };
    String::from_utf8_lossy(&text[..n]).into_owned()
}

/// Returns the name of a user, or the number if there is no name.
pub fn user_name(uid: u32) -> String {
    let mut space = [0 as libc::c_char; 4096];
    // SAFETY: the entry's strings are in `space`, which outlives them.
    unsafe {
        let mut entry: libc::passwd = std::mem::zeroed();
        let mut found = std::ptr::null_mut();
        libc::getpwuid_r(uid, &mut entry, space.as_mut_ptr(), space.len(), &mut found);
        if found.is_null() {
            uid.to_string()
        } else {
            CStr::from_ptr(entry.pw_name).to_string_lossy().into_owned()
        }
    }
}

pub fn group_name(gid: u32) -> String {
    let mut space = [0 as libc::c_char; 4096];
    // SAFETY: the entry's strings are in `space`, which outlives them.
    unsafe {
        let mut entry: libc::group = std::mem::zeroed();
        let mut found = std::ptr::null_mut();
        libc::getgrgid_r(gid, &mut entry, space.as_mut_ptr(), space.len(), &mut found);
        if found.is_null() {
            gid.to_string()
        } else {
            CStr::from_ptr(entry.gr_name).to_string_lossy().into_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_read_like_ls() {
        assert_eq!(mode_text(0o100_644), "-rw-r--r--");
        assert_eq!(mode_text(0o041_777), "drwxrwxrwt");
        assert_eq!(mode_text(0o104_711), "-rws--x--x");
        assert_eq!(mode_text(0o102_600), "-rw---S---");
        assert_eq!(mode_text(0o120_777), "lrwxrwxrwx");
    }

    #[test]
    fn sizes_read_like_ls() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 << 10, "10K"),
            ((10 << 10) + 1, "11K"),
            ((1 << 20) - 1, "1.0M"),
            (64 << 20, "64M"),
            (3 << 29, "1.5G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn times_read_like_ls() {
        let now = 1_700_000_000;
        assert!(time_text(now - 60, now).contains(':'));
        assert!(!time_text(now - 40_000_000, now).contains(':'));
        assert!(!time_text(now + 60, now).contains(':'));
    }
}
