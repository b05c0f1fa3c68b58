//! Checks of mount prefixes: refuses harmful ones.

use crate::args::Media;
use crate::fail::Fail;
use forebay_media::{MediumKind, MediumSpec};
use std::path::{Path, PathBuf};

/// Directories that programs need, and a pool must not hide.
const NEEDED: [&str; 9] = [
    "/dev", "/proc", "/sys", "/usr", "/bin", "/lib", "/lib64", "/etc", "/tmp",
];
/// Directories that the kernel fills. A prefix inside them is refused, except below `/dev/shm`.
const KERNEL: [&str; 3] = ["/dev", "/proc", "/sys"];

/// Returns the prefix that the user wants, or the default, for a pool without an origin.
pub fn wanted(media: &Media) -> String {
    media.mount.clone().unwrap_or_else(|| "/fb".into())
}

/// Checks the prefix. Returns it without a `/` at its end, and a warning if it hides a directory.
pub fn check(mount: &str, media: &[MediumSpec]) -> Result<(String, Option<String>), Fail> {
    let prefix = mount.trim_end_matches('/');
    let bad = |why: &str| Err(Fail::usage(format!("--mount {mount}: {why}")));
    if prefix.is_empty() {
        return bad("the prefix can't be the root directory; write for example --mount /fb");
    }
    let parts: Vec<&str> = prefix.split('/').collect();
    if !parts[0].is_empty() || parts[1..].iter().any(|p| matches!(*p, "" | "." | "..")) {
        return bad(
            "the prefix must be an absolute path without '.' and '..'; write for example --mount /fb",
        );
    }
    let path = Path::new(prefix);
    let mut needed: Vec<PathBuf> = NEEDED.iter().map(PathBuf::from).collect();
    needed.extend(
        std::env::var_os("HOME")
            .map(PathBuf::from)
            .filter(|h| h.is_absolute()),
    );
    needed.extend(std::path::absolute(forebay_client::home()));
    for m in media {
        if let MediumKind::Files(dir) = &m.kind {
            needed.push(dir.clone());
        }
    }
    let inside_kernel =
        KERNEL.iter().any(|k| path.starts_with(k)) && !path.starts_with("/dev/shm/");
    let hidden = needed.iter().find(|n| n.starts_with(path));
    if let Some(hidden) = hidden
        .cloned()
        .or_else(|| inside_kernel.then(|| path.to_owned()))
    {
        return bad(&format!(
            "this would hide {}, which programs need; choose another prefix, such as /fb",
            hidden.display()
        ));
    }
    let warning = path.symlink_metadata().is_ok().then(|| {
        format!(
            "the mount prefix {prefix} hides {} that exists; programs in the pool won't see it",
            if path.is_dir() {
                "a directory"
            } else {
                "a file"
            }
        )
    });
    Ok((prefix.to_owned(), warning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmful_prefixes() {
        for bad in [
            "", "/", "//", "fb", "/a/../b", "/a/./b", "/a//b", "/usr", "/tmp/", "/dev/x", "/proc/1",
        ] {
            assert_eq!(check(bad, &[]).unwrap_err().code, 2, "{bad}");
        }
        let media = ["files:/local/ssd:1G".parse().unwrap()];
        assert!(check("/local", &media).is_err());
        assert!(check("/local/ssd/fb", &media).is_ok());
        assert_eq!(
            check("/no-such-prefix/", &[]).unwrap(),
            ("/no-such-prefix".into(), None)
        );
        assert!(check("/var", &[]).unwrap().1.is_some());
    }
}
