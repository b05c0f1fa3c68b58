//! The reasons why a store can't be used, and why content couldn't be copied.

use rustix::io::Errno;
use std::fmt;

/// The reason why a store can't be used, or why content couldn't be copied. The user of a store
/// makes sentences of the errnos by [`explain`](crate::SlowStore::explain) of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The store can't be used as it is named or set up. The sentence says why, and what the user
    /// can do.
    Unusable(String),
    Read(Errno),
    Write(Errno),
    ReadBack(Errno),
    /// The source has changed since the copy began.
    Changed,
    /// The destination's content differed from the source's, and was removed.
    Differs,
    /// The destination's content differs from the source's, and is still there: the store can't
    /// remove it without the risk of removing what others have written.
    Damaged,
    Stopped,
}

impl Error {
    /// Returns the errno for programs. ESTALE: the source has changed.
    pub fn errno(&self) -> Errno {
        match self {
            Error::Unusable(_) => Errno::INVAL,
            Error::Read(e) | Error::Write(e) | Error::ReadBack(e) => *e,
            Error::Changed => Errno::STALE,
            Error::Differs | Error::Damaged => Errno::IO,
            Error::Stopped => Errno::CANCELED,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unusable(why) => f.write_str(why),
            error => f.write_str(&explain(error.errno())),
        }
    }
}

impl std::error::Error for Error {}

/// Returns an errno's text, without its number.
pub fn explain(error: Errno) -> String {
    let text = std::io::Error::from_raw_os_error(error.raw_os_error()).to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = words.chars();
    let mut text: String = match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    };
    if error == Errno::FBIG {
        text += "; raise the limit of file sizes (ulimit -f), or choose another file system";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_words() {
        assert_eq!(explain(Errno::NOENT), "no such file or directory");
    }
}
