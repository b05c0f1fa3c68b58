//! Extended attributes of objects, with POSIX's permissions and errors.
//!
//! `user.` attributes need the permissions of their object. Only root sets `trusted.` and
//! `security.` ones. Attributes of other name spaces fail with EOPNOTSUPP. One attribute shows and
//! sets the declared controls ([`crate::controls::ATTRIBUTE`]).

use crate::controls;
use crate::cred::{READ, WRITE};
use crate::fs::Fs;
use forebay_client::controls::Declared;
use forebay_store::{Inode, ObjectId};
use rustix::io::{Errno, Result};
use rustix::thread::CapabilitySet;

/// Maximum size of the value of an extended attribute. Bytes.
const XATTR_SIZE_MAX: usize = 65_536;

/// Checks an attribute that a new file is to be made with. ERANGE, E2BIG: no object can have it.
/// EOPNOTSUPP: a new file can't be made with it.
pub(crate) fn check_attribute(name: &[u8], value: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > forebay_store::NAME_MAX {
        return Err(Errno::RANGE);
    }
    if value.len() > XATTR_SIZE_MAX {
        return Err(Errno::TOOBIG);
    }
    // Only `user.` attributes can be set with the file: each has its own record.
    let kept = name
        .strip_prefix(b"user.")
        .is_some_and(|key| !key.is_empty());
    if kept && name != controls::ATTRIBUTE {
        Ok(())
    } else {
        Err(Errno::OPNOTSUPP)
    }
}

/// Whether the inode is that of a removed directory: see `removed.rs`.
fn is_removed_dir(inode: &Inode) -> bool {
    inode.nlink == 0 && inode.is_dir()
}

impl Fs {
    fn attribute_object(&self, id: ObjectId, name: &[u8], want: u32) -> Result<Inode> {
        let i = self.inode_in_use(id)?;
        let known = |prefix: &[u8]| name.starts_with(prefix);
        if known(b"user.") {
            if !i.is_file() && !i.is_dir() {
                return Err(if want == WRITE {
                    Errno::PERM
                } else {
                    Errno::NODATA
                });
            }
            self.cred().check(&i, want)?;
            if !is_removed_dir(&i) {
                self.origin_gate().bring_attributes(id, want == WRITE)?;
            }
        } else if known(b"trusted.") || known(b"security.") {
            if !self.cred().can(CapabilitySet::SYS_ADMIN) && want == WRITE {
                return Err(Errno::PERM);
            }
        } else {
            return Err(Errno::OPNOTSUPP);
        }
        // The name is a name space's prefix and nothing else.
        if name.last() == Some(&b'.') && name.iter().filter(|&&b| b == b'.').count() == 1 {
            return Err(Errno::INVAL);
        }
        Ok(i)
    }

    /// getxattr(2). Returns the whole value.
    ///
    /// # Errors
    /// ENODATA, EOPNOTSUPP for a name space that the pool doesn't support, EACCES.
    pub fn get_attribute(&self, id: ObjectId, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.attribute_object(id, name, READ)?;
        if is_removed_dir(&inode) {
            let removed = self.process().removed_dir(id)?;
            return Ok(removed.get(name).ok_or(Errno::NODATA)?.to_vec());
        }
        if name == controls::ATTRIBUTE {
            return controls::as_attribute(&inode);
        }
        self.cluster().namespace().attribute(id, name)
    }

    /// The names of all extended attributes but the declared controls.
    ///
    /// # Errors
    /// ENOENT; those of the pool's origin.
    pub fn attribute_names(&self, id: ObjectId) -> Result<Vec<Vec<u8>>> {
        match self.origin_gate().bring_attributes(id, false) {
            Ok(()) => {}
            Err(Errno::NOENT) => return self.names_of_removed(id),
            Err(error) => return Err(error),
        }
        match self.cluster().namespace().attributes(id) {
            Err(Errno::NOENT) => self.names_of_removed(id),
            names => names,
        }
    }

    #[cold]
    fn names_of_removed(&self, id: ObjectId) -> Result<Vec<Vec<u8>>> {
        let removed = self.process().removed_dir(id)?;
        Ok(removed
            .attributes
            .into_iter()
            .map(|(name, _)| name)
            .collect())
    }

    /// setxattr(2) with its flags. `known`: the directory and name by which the caller found the
    /// object, if any.
    ///
    /// # Errors
    /// EEXIST, ENODATA, EOPNOTSUPP, E2BIG, ERANGE, EACCES, EPERM, ENOSPC.
    pub fn set_attribute(
        &self,
        id: ObjectId,
        name: &[u8],
        value: &[u8],
        flags: i32,
        known: Option<(ObjectId, &[u8])>,
    ) -> Result<()> {
        if name.is_empty() || name.len() > forebay_store::NAME_MAX {
            return Err(Errno::RANGE);
        }
        if value.len() > XATTR_SIZE_MAX {
            return Err(Errno::TOOBIG);
        }
        const BOTH: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;
        let create = match flags {
            0 => None,
            libc::XATTR_CREATE => Some(true),
            libc::XATTR_REPLACE | BOTH => Some(false),
            _ => return Err(Errno::INVAL),
        };
        let inode = self.attribute_object(id, name, WRITE)?;
        if flags == BOTH {
            // With both flags the call always fails: whether the attribute exists decides the
            // error.
            return self.get_attribute(id, name).and(Err(Errno::EXIST));
        }
        if is_removed_dir(&inode) {
            return self.process().change_removed_dir(id, |removed| {
                match (create, removed.get(name)) {
                    (Some(true), Some(_)) => Err(Errno::EXIST),
                    (Some(false), None) => Err(Errno::NODATA),
                    _ => removed.set(name, value),
                }
            });
        }
        if name == controls::ATTRIBUTE {
            return self.set_as_attribute(id, &inode, value, create, known);
        }
        self.cluster()
            .namespace()
            .set_attribute(id, name, value, create, known)
    }

    /// removexattr(2).
    ///
    /// # Errors
    /// ENODATA, EOPNOTSUPP, EACCES, EPERM.
    pub fn remove_attribute(&self, id: ObjectId, name: &[u8]) -> Result<()> {
        let inode = self.attribute_object(id, name, WRITE)?;
        if is_removed_dir(&inode) {
            return self.process().change_removed_dir(id, |removed| {
                removed.get(name).ok_or(Errno::NODATA)?;
                removed.attributes.retain(|(other, _)| other != name);
                Ok(())
            });
        }
        if name == controls::ATTRIBUTE {
            controls::as_attribute(&inode)?;
            return self.set_controls(id, Declared::NOTHING);
        }
        if !inode.has_attributes {
            return Err(Errno::NODATA);
        }
        self.cluster().namespace().remove_attribute(id, name)
    }
}
