//! Copying an object's attributes: owner, mode, times, `user.*` attributes.

use forebay_backing::{Attributes, Meta};
use rustix::io::{Errno, Result};

/// The attributes that couldn't be copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Whether the source has extended attributes, but the destination can't store any.
    pub without_xattrs: bool,
    /// Whether the destination can't store the source's modification time, and got the closest time
    /// that it can store.
    pub without_time: bool,
}

/// The failed step, and its errno.
pub type Failed = (&'static str, Errno);

/// Copies the attributes of an object with the metadata `meta` to another object. The content of
/// the other object must be complete. Sets the times last: writing changes them.
pub fn apply(
    from: &dyn Attributes,
    meta: &Meta,
    to: &dyn Attributes,
) -> std::result::Result<Applied, Failed> {
    let mut applied = Applied {
        without_time: !to.keeps_time(meta.mtime),
        ..Applied::default()
    };
    let at = |what| move |e| (what, e);
    if !meta.is_symlink() {
        let before = to.stat().map_err(at("reading its attributes"))?;
        applied.without_xattrs = xattrs(from, to, &before)?;
    }
    apply_metadata(meta, to)?;
    Ok(applied)
}

/// Sets an object's owner, mode and times to those in `meta`, the times last.
///
/// # Errors
/// The failed step, and its errno.
pub fn apply_metadata(meta: &Meta, to: &dyn Attributes) -> std::result::Result<(), Failed> {
    let at = |what| move |e| (what, e);
    let stat = || to.stat().map_err(at("reading its attributes"));
    let before = stat()?;
    // If another user has replaced a directory by a program, the directory's mode bits would mean
    // something else on the program.
    if before.kind() != meta.kind() {
        let step = "setting its attributes, while another object is in its place,";
        return Err((step, Errno::STALE));
    }
    if (before.uid, before.gid) != (meta.uid, meta.gid) {
        own(to, meta, &before).map_err(at("setting its owner"))?;
    }
    // Setting the `user.*` attributes and the owner may have changed the mode.
    let now = stat()?;
    if !meta.is_symlink() {
        let mut mode = meta.permissions();
        // The set-ID bits mean something else if the owner or group differs.
        if now.uid != meta.uid {
            mode &= !0o4000;
        }
        if now.gid != meta.gid && !meta.is_dir() {
            mode &= !0o2000;
        }
        if now.permissions() != mode {
            to.chmod(mode).map_err(at("setting its mode"))?;
        }
    }
    if !now.is_modified_at(meta.mtime) {
        to.set_times(meta.atime, meta.mtime)
            .map_err(at("setting its times"))?;
    }
    Ok(())
}

/// Copies only the `user.*` attributes of a file to another one. Returns true if the source has
/// some but the destination can't store any.
///
/// # Errors
/// The failed step, and its errno.
pub fn user_attributes(
    from: &dyn Attributes,
    to: &dyn Attributes,
) -> std::result::Result<bool, Failed> {
    let at = |what| move |e| (what, e);
    let before = to.stat().map_err(at("reading its attributes"))?;
    let applied = xattrs(from, to, &before);
    // `xattrs` may have made the file writable.
    if before.permissions() & 0o200 == 0 {
        to.chmod(before.permissions())
            .map_err(at("setting its mode"))?;
    }
    applied
}

/// Sets owner and group, as far as this user is permitted to.
fn own(to: &dyn Attributes, meta: &Meta, now: &Meta) -> Result<()> {
    let denied = |e: &Errno| matches!(*e, Errno::PERM | Errno::INVAL);
    match to.chown(Some(meta.uid), Some(meta.gid)) {
        Err(e) if denied(&e) && now.gid != meta.gid => match to.chown(None, Some(meta.gid)) {
            Err(e) if denied(&e) => Ok(()),
            other => other,
        },
        Err(e) if denied(&e) => Ok(()),
        other => other,
    }
}

/// Copies the `user.*` attributes of an object to another one. Returns true if the destination
/// can't store any.
fn xattrs(
    from: &dyn Attributes,
    to: &dyn Attributes,
    now: &Meta,
) -> std::result::Result<bool, Failed> {
    let at = |what| move |e| (what, e);
    let wanted = from
        .xattrs()
        .map_err(at("listing the source's extended attributes"))?;
    let present = match to.xattrs() {
        Ok(names) => names,
        Err(e) if wanted.is_empty() && e == Errno::ACCESS => return Ok(false),
        Err(e) => return Err(("listing its extended attributes", e)),
    };
    let mut writable = now.permissions() & 0o200 != 0;
    let mut make_writable = || {
        if !std::mem::replace(&mut writable, true) {
            to.chmod(now.permissions() | 0o200)
        } else {
            Ok(())
        }
    };
    for name in &wanted {
        let value = match from.xattr(name) {
            // Removed since the attributes were listed.
            Err(Errno::NODATA) => continue,
            other => other.map_err(at("reading the source's extended attributes"))?,
        };
        if present.contains(name) && to.xattr(name).is_ok_and(|v| v == value) {
            continue;
        }
        make_writable().map_err(at("setting its mode"))?;
        match to.set_xattr(name, &value) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(true),
            other => other.map_err(at("setting its extended attributes"))?,
        }
    }
    for name in present.iter().filter(|n| !wanted.contains(n)) {
        make_writable().map_err(at("setting its mode"))?;
        match to.remove_xattr(name) {
            Err(Errno::NODATA) => {}
            other => other.map_err(at("removing its extended attributes"))?,
        }
    }
    Ok(false)
}
