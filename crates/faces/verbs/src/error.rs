//! Errors: an errno for programs, and a text for people.

use rustix::io::Errno;
use std::fmt;

/// The error of a verb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    errno: Errno,
    text: String,
}

/// The result of a verb.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns an error with this errno and this text.
    pub fn new(errno: Errno, text: impl Into<String>) -> Error {
        Error {
            errno,
            text: text.into(),
        }
    }

    /// Returns an error with the text `what: REASON`, where REASON is the system's text for
    /// `errno`.
    pub fn of(what: impl fmt::Display, errno: Errno) -> Error {
        let words = std::io::Error::from(errno);
        Error::new(errno, format!("{what}: {words}"))
    }

    /// Returns EINVAL with this text.
    pub fn invalid(text: impl Into<String>) -> Error {
        Error::new(Errno::INVAL, text)
    }

    /// Returns ENOTSUP with this text, for a request or control that can't be satisfied.
    pub fn unsupported(text: impl Into<String>) -> Error {
        Error::new(Errno::OPNOTSUPP, text)
    }

    /// Returns the errno.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// Puts `what`, such as the name of an object, in front of the error's text.
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
