//! Sources and destinations of `cp` and `mv`.

use super::session::{Session, base_name, join};
use crate::fail::Fail;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// One source, and where to.
pub struct Target {
    /// Paths as the user wrote them.
    pub shown: Vec<u8>,
    pub to_shown: Vec<u8>,
    /// Paths inside the pool.
    pub path: Vec<u8>,
    pub to: Vec<u8>,
}

/// The sources of `SRC... DST`, each with its own destination: DST, or a name in it if DST is a
/// directory. Two sources for one destination: the second one is complained about and left out.
///
/// # Errors
/// Several sources, and DST isn't a directory.
pub fn targets(session: &Session, sources: &[OsString], dst: &OsStr) -> Result<Vec<Target>, Fail> {
    let to = session.path(dst);
    let stat = session.fs.stat(&to, true);
    let into = stat.is_ok_and(|s| s.mode & libc::S_IFMT == libc::S_IFDIR);
    if sources.len() > 1 && !into {
        let dst = dst.to_string_lossy();
        return Err(Fail::failed(format!(
            "{dst}: there is no such directory; several sources need one as the destination"
        )));
    }
    let (mut taken, mut targets) = (HashSet::new(), Vec::new());
    for source in sources {
        let path = session.path(source);
        // The content of a source without a name goes into DST itself.
        let name = match base_name(&path) {
            b"" => b".",
            name => name,
        };
        let (to, to_shown) = match into {
            true => (join(&to, name), join(dst.as_bytes(), name)),
            false => (to.clone(), dst.as_bytes().to_vec()),
        };
        let is_content = name == b".";
        let target = Target {
            shown: source.as_bytes().to_vec(),
            to_shown,
            path,
            to,
        };
        if !is_content && !taken.insert(target.to.clone()) {
            let to = String::from_utf8_lossy(&target.to_shown).into_owned();
            let what = format!("not done: an earlier source has become {to}");
            session.complain(&target.shown, what);
            continue;
        }
        targets.push(target);
    }
    Ok(targets)
}
