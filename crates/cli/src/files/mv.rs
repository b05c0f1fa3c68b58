//! `forebay mv`: rename(2), and where the pool can't rename (EXDEV), a copy and a removal.

use super::cp::copy_tree;
use super::rm::remove_tree;
use super::session::{Session, base_name, trimmed};
use super::targets::{Target, targets};
use super::walk::{Node, errno};
use crate::fail::Fail;
use crate::file_args::Mv;
use forebay_posix::{Errno, Follow, ObjectId, Place, RenameMode, Result};

pub fn mv(name: &str, a: &Mv) -> std::result::Result<u8, Fail> {
    let session = Session::open(name)?;
    for target in targets(&session, &a.src, &a.dst)? {
        rename(&session, a, &target);
    }
    Ok(session.end())
}

/// Where a name is: its directory, the name, and what it names.
fn place(session: &Session, path: &[u8]) -> Result<(ObjectId, Vec<u8>, ObjectId)> {
    errno(
        session
            .fs
            .at(ObjectId::ROOT, path, Follow::No, |place: &Place| {
                let (parent, name) = place.parent_and_name();
                Ok((parent, name.to_vec(), place.existing()?.id))
            }),
    )
}

fn rename(session: &Session, a: &Mv, t: &Target) {
    let fs = &session.fs;
    let what = format!("can't be moved to {}", String::from_utf8_lossy(&t.to_shown));
    if matches!(base_name(&t.path), b"" | b"." | b"..") {
        return session.complain(&t.shown, "can't be moved by this name");
    }
    let mode = match a.no_clobber {
        true => RenameMode::NoReplace,
        false => RenameMode::Replace,
    };
    if let (Ok(from), Ok(to)) = (place(session, &t.path), place(session, &t.to))
        && from.2 == to.2
        && !a.no_clobber
    {
        // rename(2) does nothing with two names of one file.
        if (from.0, &from.1) == (to.0, &to.1) {
            return session.complain(&t.shown, format!("{what}: they are the same file"));
        }
        if let Err(e) = fs.unlink(&t.path) {
            session.complain_errno(&t.shown, &what, e);
        }
        return;
    }
    let root = ObjectId::ROOT;
    match errno(fs.rename_at((root, &t.path), (root, &t.to), mode)) {
        Ok(()) => session.tell("moved", &t.shown),
        Err(Errno::EXIST) if a.no_clobber => {}
        Err(Errno::INVAL) => {
            session.complain(&t.shown, format!("{what}: that is below it"));
        }
        Err(Errno::XDEV) => {
            let start = || Node::start(fs, &t.shown, trimmed(&t.path).to_vec(), false);
            match start() {
                Err(e) => session.complain_errno(&t.shown, &what, e),
                Ok(node) => {
                    if copy_tree(session, node, t, true)
                        && let Ok(node) = start()
                    {
                        remove_tree(session, node);
                    }
                }
            }
        }
        Err(e) => session.complain_errno(&t.shown, &what, e),
    }
}
