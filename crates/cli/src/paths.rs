//! Paths as the user writes them: in the pool, or as SRC:DST pairs.

use crate::fail::Fail;
use forebay_client::Pool;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Returns the path inside a pool for a path that the user wrote: `/x` and `/fb/x` are the same. So
/// is `x`, unless the working directory lies in that pool.
pub fn in_pool(written: &OsStr, pool: &Pool) -> Vec<u8> {
    let path = in_mount(written, &pool.config().mount);
    if written.as_bytes().starts_with(b"/") {
        return path;
    }
    match crate::cwd::inside(pool) {
        Some(dir) => [&dir, path.as_slice()].concat(),
        None => path,
    }
}

/// Like [`in_pool`], for a pool that isn't open and has this prefix.
pub fn in_mount(written: &OsStr, mount: &str) -> Vec<u8> {
    let bytes = written.as_bytes();
    let rest = match bytes.strip_prefix(mount.as_bytes()) {
        Some(rest) if rest.is_empty() || rest.starts_with(b"/") => rest,
        _ => bytes,
    };
    if rest.starts_with(b"/") {
        rest.to_vec()
    } else {
        [b"/", rest].concat()
    }
}

/// Whether a path of the real file system would lie under the pool's mount prefix.
pub fn is_under(path: &Path, pool: &Pool) -> bool {
    begins_with(&crate::cwd::resolve(path, pool), &pool.config().mount)
}

/// Like [`is_under`], for a pool with this prefix that isn't open. If the working directory lies in
/// any pool, every relative path counts as under the prefix.
pub fn is_under_prefix(path: &Path, mount: &str) -> bool {
    path.is_relative() && crate::cwd::is_in_a_pool() || begins_with(path, mount)
}

fn begins_with(path: &Path, mount: &str) -> bool {
    std::path::absolute(path).is_ok_and(|p| p.starts_with(mount))
}

/// Splits `SRC:/DST` of `--in` at the last `:/` (but not at that of `s3://`).
pub fn in_pair(text: &OsStr) -> Result<(PathBuf, OsString), Fail> {
    let bytes = text.as_bytes();
    let at = bytes
        .windows(2)
        .rposition(|w| w == b":/")
        .filter(|&at| at > 0 && !bytes[at + 1..].starts_with(b"//"));
    let Some(at) = at else {
        return Err(Fail::usage(format!(
            "--in '{}' is not SRC:/DST; write for example --in ./case:/case",
            text.to_string_lossy()
        )));
    };
    Ok((
        PathBuf::from(OsStr::from_bytes(&bytes[..at])),
        OsString::from_vec(bytes[at + 1..].to_vec()),
    ))
}

/// Splits `/SRC:DST` of `--out` at the first `:`.
pub fn out_pair(text: &OsStr) -> Result<(OsString, PathBuf), Fail> {
    let bytes = text.as_bytes();
    let at = bytes
        .iter()
        .position(|&b| b == b':')
        .filter(|&at| at > 0 && at + 1 < bytes.len());
    let Some(at) = at.filter(|_| bytes[0] == b'/') else {
        return Err(Fail::usage(format!(
            "--out '{}' is not /SRC:DST; write for example --out /results:./results",
            text.to_string_lossy()
        )));
    };
    let (src, dst) = (bytes[..at].to_vec(), &bytes[at + 1..]);
    Ok((
        OsString::from_vec(src),
        PathBuf::from(OsStr::from_bytes(dst)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(text: &str) -> &OsStr {
        OsStr::new(text)
    }

    #[test]
    fn pool_paths() {
        for written in ["/a/b", "/fb/a/b", "a/b"] {
            assert_eq!(in_mount(os(written), "/fb"), b"/a/b");
        }
        assert_eq!(in_mount(os("/fb"), "/fb"), b"/");
        assert_eq!(in_mount(os("/fbx"), "/fb"), b"/fbx");
        assert!(is_under_prefix(Path::new("/fb/x"), "/fb"));
        assert!(!is_under_prefix(Path::new("/fbx"), "/fb"));
    }

    #[test]
    fn pairs() {
        assert_eq!(in_pair(os("a:b:/c")).unwrap(), ("a:b".into(), "/c".into()));
        assert_eq!(
            in_pair(os("/x:/y:/z")).unwrap(),
            ("/x:/y".into(), "/z".into())
        );
        assert_eq!(
            out_pair(os("/a:b:/c")).unwrap(),
            ("/a".into(), "b:/c".into())
        );
        assert_eq!(
            in_pair(os("s3://b/p:/c")).unwrap(),
            ("s3://b/p".into(), "/c".into())
        );
        assert_eq!(
            out_pair(os("/a:s3://b/c")).unwrap(),
            ("/a".into(), "s3://b/c".into())
        );
        for bad in ["", "a", ":/c", "a:b", "s3://b/p"] {
            assert_eq!(in_pair(os(bad)).unwrap_err().code, 2, "{bad}");
        }
        for bad in ["", "/a", "/a:", "a:b", ":b"] {
            assert_eq!(out_pair(os(bad)).unwrap_err().code, 2, "{bad}");
        }
    }
}
