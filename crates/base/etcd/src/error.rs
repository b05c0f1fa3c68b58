//! Errors: their kinds, each with an errno for programs and a sentence for people.

use rustix::io::Errno;
use std::fmt;
use std::path::PathBuf;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// No endpoint has an address; the reason for each.
    NoAddress(Vec<String>),
    /// This build has no TLS.
    NoTls,
    /// This certificate or key can't be read.
    NotPem(&'static str),
    /// The certificate of one side isn't accepted.
    NotTrusted {
        /// The endpoint.
        endpoint: String,
        /// The reason.
        why: String,
    },
    /// No endpoint can be reached, so the request wasn't carried out. The reason for each.
    Unreachable(Vec<String>),
    /// There is no reply: the request may have been carried out. The reason for each endpoint.
    Lost(Vec<String>),
    /// A reply of several lines broke off, for this reason.
    BrokenOff(String),
    /// A reply of several lines ended before the last line.
    EndedEarly,
    /// The reply isn't etcd's. The text says why.
    NotEtcd(String),
    /// etcd granted no lease.
    NoLease,
    /// etcd doesn't accept the token of a login that it has just granted.
    LoggedOut,
    /// etcd refuses this client's certificate, which names a user.
    CommonName,
    /// etcd refused the request, and didn't carry it out.
    Refused {
        /// The errno for the refusal.
        errno: Errno,
        /// etcd's message, and advice.
        text: String,
    },
    /// etcd refused the login of this user.
    Login {
        /// The user.
        user: String,
        /// The refusal.
        refusal: Box<Error>,
        /// Advice.
        hint: String,
    },
    /// A file with a password or key can't be opened.
    NoSecret {
        /// The file.
        file: PathBuf,
        /// The secret in the file, for messages: "the password" or "the key".
        secret: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// A file with a password or key can't be used.
    BadSecret {
        /// The file.
        file: PathBuf,
        /// The secret in the file, for messages: "the password" or "the key".
        secret: &'static str,
        /// EACCES or EINVAL.
        errno: Errno,
        /// The reason.
        why: String,
    },
}

/// The result of a request.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The errno for programs.
    pub fn errno(&self) -> Errno {
        match self {
            Error::NoAddress(_) | Error::Unreachable(_) => Errno::HOSTUNREACH,
            Error::NoTls => Errno::OPNOTSUPP,
            Error::NotPem(_) | Error::CommonName => Errno::INVAL,
            Error::NotTrusted { .. } | Error::LoggedOut => Errno::ACCESS,
            Error::Lost(_) | Error::BrokenOff(_) | Error::EndedEarly => Errno::TIMEDOUT,
            Error::NotEtcd(_) | Error::NoLease => Errno::PROTO,
            Error::Login { refusal, .. } => refusal.errno(),
            Error::Refused { errno, .. }
            | Error::NoSecret { errno, .. }
            | Error::BadSecret { errno, .. } => *errno,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoAddress(whys) => write!(f, "etcd can't be found: {}", whys.join("; ")),
            Error::NoTls => f.write_str("no TLS for etcd here"),
            Error::NotPem(what) => write!(f, "{what} for etcd can't be read as PEM"),
            Error::NotTrusted { endpoint, why } => write!(
                f,
                "etcd at {endpoint}: its certificate, or ours, isn't accepted: {why}; see whether \
                 the authority's certificate, the own one and its key are right"
            ),
            Error::Unreachable(whys) | Error::Lost(whys) => write!(
                f,
                "no answer from etcd ({}); see whether it runs there, and whether that is its \
                 client port",
                whys.join("; ")
            ),
            Error::BrokenOff(why) => write!(f, "etcd's answer broke off: {why}"),
            Error::EndedEarly => f.write_str("etcd's answer ended too early"),
            Error::NotEtcd(text) => f.write_str(text),
            Error::NoLease => f.write_str("etcd has granted no lease"),
            Error::LoggedOut => f.write_str(
                "etcd doesn't accept the login that it has just given; see whether all its members \
                 have the same users",
            ),
            Error::CommonName => f.write_str(
                "etcd: a client's certificate must not have a common name (CN) where etcd has \
                 users: make one without",
            ),
            Error::Refused { text, .. } => write!(f, "etcd: {text}"),
            Error::Login {
                user,
                refusal,
                hint,
            } => write!(f, "login of '{user}': {refusal}; {hint}"),
            Error::NoSecret {
                file,
                secret,
                errno,
            } => write!(
                f,
                "the file {} with {secret} for etcd: {errno}",
                file.display()
            ),
            Error::BadSecret {
                file, secret, why, ..
            } => write!(
                f,
                "the file {} with {secret} for etcd {why}",
                file.display()
            ),
        }
    }
}

impl std::error::Error for Error {}
