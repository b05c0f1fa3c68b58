//! The text of paths: whether they are under the mount prefix, and how the program sees a path of
//! the pool.

use forebay_posix::Fs;

#[inline]
pub fn contains(path: &[u8], mark: &[u8]) -> bool {
    path.len() >= mark.len() && path.windows(mark.len()).any(|w| w == mark)
}

/// Whether the path may have a component that is empty, `.` or `..` (or any that begins with a
/// dot).
#[inline]
pub fn has_dots(path: &[u8]) -> bool {
    contains(path, b"//") || contains(path, b"/.")
}

/// Joins two paths, and resolves `.`, `..` and doubled slashes by the text alone.
pub fn normalise(base: &[u8], path: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(base.len() + path.len() + 1);
    let base = if path.first() == Some(&b'/') {
        &b""[..]
    } else {
        base
    };
    for part in base.split(|&b| b == b'/').chain(path.split(|&b| b == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => {
                let cut = out.iter().rposition(|&b| b == b'/').unwrap_or(0);
                out.truncate(cut);
            }
            _ => {
                out.push(b'/');
                out.extend_from_slice(part);
            }
        }
    }
    if out.is_empty() || (path.last() == Some(&b'/') && !out.is_empty()) {
        out.push(b'/');
    }
    out
}

/// Returns the part after the mount prefix, if the path is under the prefix.
#[inline]
pub fn under<'a>(mount: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    match path.strip_prefix(mount)? {
        b"" => Some(b"/"),
        rest if rest[0] == b'/' => Some(rest),
        _ => None,
    }
}

/// Adds a slash to `rest` if `path` ends in `/.` or `/..`, which requires a directory.
pub fn keep_end(rest: &[u8], path: &[u8]) -> Vec<u8> {
    let mut rest = rest.to_vec();
    if (path.ends_with(b"/.") || path.ends_with(b"/..")) && !rest.ends_with(b"/") {
        rest.push(b'/');
    }
    rest
}

/// Returns a path of the pool as the program sees it.
pub fn visible(fs: &Fs, path: &[u8]) -> Vec<u8> {
    let mut full = fs.mount().to_vec();
    if path != b"/" {
        full.extend_from_slice(path);
    }
    full
}
