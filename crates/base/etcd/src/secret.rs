//! Reads passwords and keys from files that no other user can read.

use crate::{Error, Result};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::Errno;
use std::io::Read;
use std::path::Path;

/// Maximum size of a file with a password. Bytes.
const MAX_PASSWORD_BYTES: u64 = 4096;
/// Maximum size of a file with a key. Bytes.
const MAX_KEY_FILE_BYTES: u64 = 1 << 20;

/// The user to log in as.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    pub password: String,
    /// Where the password comes from, for messages.
    pub from: String,
    /// The settings that the user should remove if etcd has no users, for messages.
    pub surplus: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} with the password in {}", self.user, self.from)
    }
}

impl Login {
    /// Returns the message for a refused login, with advice.
    pub fn refused(&self, error: Error) -> Error {
        let hint = match error.errno() {
            Errno::ACCESS => format!(
                "see whether '{}' is a user there, and the password in {} is right",
                self.user, self.from
            ),
            _ => format!("if it knows no users, leave out {}", self.surplus),
        };
        Error::Login {
            user: self.user.clone(),
            refusal: Box::new(error),
            hint,
        }
    }
}

/// Reads a password: the first line of `file`.
///
/// # Errors
/// EACCES if other users may read or change the file. EINVAL if it isn't a regular file, or its
/// first line is empty. Errors of open(2).
pub fn password_in(file: &Path) -> Result<String> {
    let text = read(file, "the password", MAX_PASSWORD_BYTES)?;
    match text.lines().next() {
        None | Some("") => Err(wrong(
            Errno::INVAL,
            file,
            "the password",
            "has an empty first line",
        )),
        Some(line) => Ok(line.to_owned()),
    }
}

/// Reads a private key.
///
/// # Errors
/// As for [`password_in`].
pub fn key_in(file: &Path) -> Result<String> {
    read(file, "the key", MAX_KEY_FILE_BYTES)
}

fn wrong(errno: Errno, file: &Path, secret: &'static str, why: &str) -> Error {
    Error::BadSecret {
        file: file.to_owned(),
        secret,
        errno,
        why: why.to_owned(),
    }
}

fn read(file: &Path, secret: &'static str, longest: u64) -> Result<String> {
    let wrong = |errno, why: &str| wrong(errno, file, secret, why);
    let cannot = |errno: Errno| Error::NoSecret {
        file: file.to_owned(),
        secret,
        errno,
    };
    // With NONBLOCK, open doesn't wait if the file is a FIFO.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let open = rustix::fs::open(file, flags, Mode::empty()).map_err(cannot)?;
    let stat = fstat(&open).map_err(cannot)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(wrong(Errno::INVAL, "isn't a regular file"));
    }
    if stat.st_mode & 0o077 != 0 {
        let why = format!(
            "can be read or changed by others: chmod 600 {}",
            file.display()
        );
        return Err(wrong(Errno::ACCESS, &why));
    }
    let mut text = String::new();
    let read = std::fs::File::from(open)
        .take(longest)
        .read_to_string(&mut text);
    read.map_err(|e| wrong(Errno::INVAL, &format!("can't be read: {e}")))?;
    Ok(text)
}
