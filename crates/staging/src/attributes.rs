//! All attributes of an object: owner, mode, times, `user.*` attributes.

use crate::place::{Meta, Place};
use rustix::io::{Errno, Result};

/// The result of applying attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The destination has no room for extended attributes, but the source has some.
    pub without_xattrs: bool,
}

/// The failed step, and its errno.
pub type Failed = (&'static str, Errno);

/// Copies the attributes of `src`, whose metadata is `meta`, to `dst`. Times come last, so this
/// must be called when the content is complete.
pub fn apply<S: Place, D: Place>(
    from: &S,
    src: &[u8],
    meta: &Meta,
    to: &D,
    dst: &[u8],
) -> std::result::Result<Applied, Failed> {
    let mut applied = Applied::default();
    let at = |what| move |e| (what, e);
    if !meta.is_symlink() {
        let before = to.stat(dst, false).map_err(at("reading its attributes"))?;
        applied.without_xattrs = xattrs(from, src, to, dst, &before)?;
    }
    apply_metadata(meta, to, dst)?;
    Ok(applied)
}

/// Gives `dst` the owner, mode and times in `meta`. Times come last.
///
/// # Errors
/// The failed step, and its errno.
pub fn apply_metadata<D: Place>(
    meta: &Meta,
    to: &D,
    dst: &[u8],
) -> std::result::Result<(), Failed> {
    let at = |what| move |e| (what, e);
    let stat = || to.stat(dst, false).map_err(at("reading its attributes"));
    let before = stat()?;
    if (before.uid, before.gid) != (meta.uid, meta.gid) {
        own(to, dst, meta, &before).map_err(at("setting its owner"))?;
    }
    // Both steps may have changed the mode.
    let now = stat()?;
    if !meta.is_symlink() {
        let mut mode = meta.permissions();
        // Set-ID bits mean something else under another owner.
        if now.uid != meta.uid {
            mode &= !0o4000;
        }
        if now.gid != meta.gid && !meta.is_dir() {
            mode &= !0o2000;
        }
        if now.permissions() != mode {
            to.chmod(dst, mode).map_err(at("setting its mode"))?;
        }
    }
    if now.mtime != meta.mtime {
        to.set_times(dst, meta.atime, meta.mtime)
            .map_err(at("setting its times"))?;
    }
    Ok(())
}

/// Copies the `user.*` attributes of the file `src` to `dst`, and changes nothing else. True if
/// `dst` can't have any, but `src` has some.
///
/// # Errors
/// The failed step, and its errno.
pub fn user_attributes<S: Place, D: Place>(
    from: &S,
    src: &[u8],
    to: &D,
    dst: &[u8],
) -> std::result::Result<bool, Failed> {
    let at = |what| move |e| (what, e);
    let before = to.stat(dst, false).map_err(at("reading its attributes"))?;
    let applied = xattrs(from, src, to, dst, &before);
    // It may have been made writable for that.
    if before.permissions() & 0o200 == 0 {
        to.chmod(dst, before.permissions())
            .map_err(at("setting its mode"))?;
    }
    applied
}

/// Sets owner and group of `dst` as far as this user may.
fn own<D: Place>(to: &D, dst: &[u8], meta: &Meta, now: &Meta) -> Result<()> {
    let denied = |e: &Errno| matches!(*e, Errno::PERM | Errno::INVAL);
    match to.chown(dst, Some(meta.uid), Some(meta.gid)) {
        Err(e) if denied(&e) && now.gid != meta.gid => match to.chown(dst, None, Some(meta.gid)) {
            Err(e) if denied(&e) => Ok(()),
            other => other,
        },
        Err(e) if denied(&e) => Ok(()),
        other => other,
    }
}

/// Copies the `user.*` attributes of `src` to `dst`. True if `dst` can't have any.
fn xattrs<S: Place, D: Place>(
    from: &S,
    src: &[u8],
    to: &D,
    dst: &[u8],
    now: &Meta,
) -> std::result::Result<bool, Failed> {
    let at = |what| move |e| (what, e);
    let wanted = from
        .xattrs(src)
        .map_err(at("listing the source's extended attributes"))?;
    let present = match to.xattrs(dst) {
        Ok(names) => names,
        Err(e) if wanted.is_empty() && e == Errno::ACCESS => return Ok(false),
        Err(e) => return Err(("listing its extended attributes", e)),
    };
    let mut writable = now.permissions() & 0o200 != 0;
    let mut make_writable = || {
        if !std::mem::replace(&mut writable, true) {
            to.chmod(dst, now.permissions() | 0o200)
        } else {
            Ok(())
        }
    };
    for name in &wanted {
        let value = match from.xattr(src, name) {
            // Removed since the attributes were listed.
            Err(Errno::NODATA) => continue,
            other => other.map_err(at("reading the source's extended attributes"))?,
        };
        if present.contains(name) && to.xattr(dst, name).is_ok_and(|v| v == value) {
            continue;
        }
        make_writable().map_err(at("setting its mode"))?;
        match to.set_xattr(dst, name, &value) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(true),
            other => other.map_err(at("setting its extended attributes"))?,
        }
    }
    for name in present.iter().filter(|n| !wanted.contains(n)) {
        make_writable().map_err(at("setting its mode"))?;
        match to.remove_xattr(dst, name) {
            Err(Errno::NODATA) => {}
            other => other.map_err(at("removing its extended attributes"))?,
        }
    }
    Ok(false)
}
