//! Errors: an errno for programs, and a text for people.

use rustix::io::Errno;
use std::fmt;

/// Why a verb failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    errno: Errno,
    text: String,
}

/// The result of verbs.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with this code and this text.
    pub fn new(errno: Errno, text: impl Into<String>) -> Error {
        Error {
            errno,
            text: text.into(),
        }
    }

    /// A system's error while doing `what`.
    pub fn of(what: impl fmt::Display, errno: Errno) -> Error {
        let words = std::io::Error::from(errno);
        Error::new(errno, format!("{what}: {words}"))
    }

    /// EINVAL.
    pub fn invalid(text: impl Into<String>) -> Error {
        Error::new(Errno::INVAL, text)
    }

    /// ENOTSUP: refuses something that can't be kept.
    pub fn unsupported(text: impl Into<String>) -> Error {
        Error::new(Errno::OPNOTSUPP, text)
    }

    /// The code.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// The same error, with the name of its object in front of the text.
    pub fn about(self, what: impl fmt::Display) -> Error {
        Error::new(self.errno, format!("{what}: {}", self.text))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}
