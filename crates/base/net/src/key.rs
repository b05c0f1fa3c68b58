//! The key of a pool: 32 random bytes that all its nodes hold.
//!
//! The key is never printed, and its memory is cleared when it is dropped. (`snow` makes copies
//! during a handshake, which it doesn't clear.) The key is stored in a file of mode 0600, and never
//! passed on a command line.

use crate::Error;
use rustix::fs::{FileType, Mode, OFlags};
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use zeroize::Zeroizing;

/// The key of a pool.
#[derive(Clone)]
pub struct PoolKey(Box<Zeroizing<[u8; PoolKey::LENGTH]>>);

impl PoolKey {
    /// Size of a key. Bytes.
    pub const LENGTH: usize = 32;

    /// Makes a new random key.
    ///
    /// # Errors
    /// [`Error::Local`] if the kernel gives no random bytes.
    pub fn generate() -> Result<PoolKey, Error> {
        let mut key = PoolKey(Box::default());
        random(&mut key.0[..])?;
        Ok(key)
    }

    /// Makes a key of these bytes, which must be secret.
    pub fn of(bytes: [u8; PoolKey::LENGTH]) -> PoolKey {
        PoolKey(Box::new(Zeroizing::new(bytes)))
    }

    /// Reads the key from `path`: a plain file that belongs to this user and that no other user can
    /// read.
    ///
    /// # Errors
    /// [`Error::Key`], with the path, if the file can't be read or isn't such a file.
    pub fn read(path: &Path) -> Result<PoolKey, Error> {
        let bad = |why: String| Error::Key(format!("{}: {why}", path.display()));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| bad(e.to_string()))?;
        let stat = rustix::fs::fstat(&file).map_err(|e| bad(e.to_string()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(bad("not a plain file".into()));
        }
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(bad("belongs to another user".into()));
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(bad("others may use it: its mode has to be 0600".into()));
        }
        if stat.st_size != PoolKey::LENGTH as i64 {
            return Err(bad(format!("not {} bytes long", PoolKey::LENGTH)));
        }
        let mut key = PoolKey(Box::default());
        File::from(file)
            .read_exact(&mut key.0[..])
            .map_err(|e| bad(e.to_string()))?;
        Ok(key)
    }

    /// Writes the key to a new file at `path`, with mode 0600.
    ///
    /// # Errors
    /// [`Error::Key`], with the path, if the file exists already or can't be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let bad = |why: String| Error::Key(format!("{}: {why}", path.display()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| bad(e.to_string()))?;
        File::from(file)
            .write_all(&self.0[..])
            .map_err(|e| bad(e.to_string()))
    }

    pub(crate) fn bytes(&self) -> &[u8; PoolKey::LENGTH] {
        &self.0
    }
}

impl fmt::Debug for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolKey(not shown)")
    }
}

/// Fills `bytes` from the kernel's random number generator.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), Error> {
    let got = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty());
    match got {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(Error::Local("getrandom gave too little".into())),
        Err(e) => Err(Error::Local(format!("getrandom: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_key_is_read_from_a_file_that_is_ours_alone() {
        let dir = std::env::temp_dir().join(format!("forebay-key-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("key");
        let key = PoolKey::generate().unwrap();
        key.write(&path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
            0o600
        );
        assert_eq!(PoolKey::read(&path).unwrap().bytes(), key.bytes());
        assert!(key.write(&path).is_err(), "a key is never overwritten");

        let refused = |why: &str| {
            let error = PoolKey::read(&path).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        refused("0600");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(&path, [1; 31]).unwrap();
        refused("32 bytes");
        std::fs::rename(&path, dir.join("other")).unwrap();
        symlink(dir.join("other"), &path).unwrap();
        assert!(PoolKey::read(&path).is_err(), "no symbolic links");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_key_never_prints_itself() {
        let key = PoolKey::generate().unwrap();
        let other = PoolKey::generate().unwrap();
        assert_ne!(key.bytes(), other.bytes());
        assert_eq!(format!("{key:?}"), format!("{other:?}"));
    }
}
