//! The reasons why a request fails.

use rustix::io::Errno;

/// Why a request failed: the errno for the program, and a sentence for its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub errno: Errno,
    /// Empty if the errno says all.
    pub sentence: String,
}

/// The result of a request.
pub type Done<T = ()> = std::result::Result<T, Error>;

impl Error {
    pub fn new(errno: Errno, sentence: impl Into<String>) -> Error {
        Error {
            errno,
            sentence: sentence.into(),
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error::new(errno, "")
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Errno::from_io_error(&error).unwrap_or(Errno::IO).into()
    }
}
