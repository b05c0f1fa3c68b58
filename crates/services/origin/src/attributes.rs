//! Copying the attributes of objects between the pool and the origin: mode, owner, times, and
//! `user.*` attributes.

use crate::shared::Shared;
use forebay_backing::{PoolStore, SlowStore, UserAttributes, kept_attributes};
use forebay_posix::ObjectId;
use forebay_staging::{apply_attributes, apply_metadata, user_attributes};
use forebay_store::Inode;
use rustix::io::{Errno, Result};
use std::sync::Arc;

/// Copies attributes between objects of the pool and of the origin.
pub struct ObjectAttributes {
    pub shared: Arc<Shared>,
}

impl ObjectAttributes {
    /// Sets the attributes of an object of the origin to those of the pool's object, without the
    /// `user.*` attributes if the object is released: only the origin has those.
    pub fn write_attributes_of(&self, at: &[u8], inode: &Inode) -> Result<()> {
        let pool = PoolStore::new(&self.shared.fs, &self.shared.config.at);
        if self.shared.side.is_object_store() {
            return self.put_attributes(at);
        }
        let source = self.shared.pool_path(at);
        let meta = pool.stat(&source, false)?;
        let applied = if inode.origin.is_released() {
            apply_metadata(&meta, &*self.shared.side.at(at))
        } else {
            apply_attributes(&*pool.at(&source), &meta, &*self.shared.side.at(at)).map(|_| ())
        };
        applied.map_err(|(_, e)| e)
    }

    /// Copies the `user.*` attributes of the origin's object to the pool's object.
    pub fn bring_user_attributes(&self, at: &[u8]) -> Result<()> {
        if self.shared.side.is_object_store() {
            return self.get_attributes(at);
        }
        let pool = PoolStore::new(&self.shared.fs, &self.shared.config.at);
        match user_attributes(
            &*self.shared.side.at(at),
            &*pool.at(&self.shared.pool_path(at)),
        ) {
            // The origin's file system has no `user.*` attributes.
            Err((_, Errno::OPNOTSUPP | Errno::NOSYS)) => Ok(()),
            brought => brought.map(|_| ()).map_err(|(_, e)| e),
        }
    }

    /// Sets the attributes of a bucket's object to those of the pool's object.
    pub fn put_attributes(&self, at: &[u8]) -> Result<()> {
        let pool = PoolStore::new(&self.shared.fs, &self.shared.config.at);
        let meta = pool.stat(&self.shared.pool_path(at), false)?;
        let id = ObjectId(meta.ino);
        // The `user.*` attributes of a released object are in the bucket only.
        let user = if self.shared.inode(id)?.origin.is_released() {
            None
        } else {
            Some(self.pool_attributes(id)?)
        };
        self.shared.side.put_attributes(at, &meta, user.as_ref())
    }

    /// Returns the `user.*` attributes of an object of the pool.
    pub fn pool_attributes(&self, id: ObjectId) -> Result<UserAttributes> {
        let mut all = UserAttributes::new();
        if !self.shared.inode(id)?.has_attributes {
            return Ok(all);
        }
        let cluster = self.shared.cluster();
        for name in cluster.namespace().attributes(id)? {
            match cluster.namespace().attribute(id, &name) {
                Ok(value) if name.starts_with(b"user.") => all.push((name, value)),
                Ok(_) | Err(Errno::NODATA) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(all)
    }

    /// Copies the `user.*` attributes of a bucket's directory to the pool's directory.
    pub fn get_attributes(&self, at: &[u8]) -> Result<()> {
        let is_dir = self.shared.fs.stat(&self.shared.pool_path(at), false)?.mode & libc::S_IFMT
            == libc::S_IFDIR;
        let there = self.shared.side.user_attributes(at, is_dir)?;
        self.take_user_attributes(at, &there)
    }

    /// Sets the `user.*` attributes of an object of the pool to those of a bucket's object.
    /// Attributes that a bucket can't store are not removed.
    pub fn take_user_attributes(&self, at: &[u8], there: &UserAttributes) -> Result<()> {
        let (pool, path) = (
            PoolStore::new(&self.shared.fs, &self.shared.config.at),
            self.shared.pool_path(at),
        );
        let meta = pool.stat(&path, false)?;
        let here = kept_attributes(self.pool_attributes(ObjectId(meta.ino))?);
        if here == *there {
            return Ok(());
        }
        let is_writable = meta.permissions() & 0o200 != 0;
        let object = pool.at(&path);
        if !is_writable {
            object.chmod(meta.permissions() | 0o200)?;
        }
        let set = || {
            let is_gone = |(name, _): &&(Vec<u8>, Vec<u8>)| there.iter().all(|t| t.0 != *name);
            for (name, _) in here.iter().filter(is_gone) {
                match object.remove_xattr(name) {
                    Ok(()) | Err(Errno::NODATA) => {}
                    Err(e) => return Err(e),
                }
            }
            for (name, value) in there.iter().filter(|t| !here.contains(t)) {
                object.set_xattr(name, value)?;
            }
            Ok(())
        };
        let done = set();
        if !is_writable {
            object.chmod(meta.permissions())?;
        }
        done
    }
}
