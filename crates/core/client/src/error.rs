//! Errors of pools. Each has a message: what failed, on which pool or file, and what to do.

use forebay_media::MediumSpec;
use rustix::io::Errno;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why an operation on a pool failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolError {
    /// The name or mount prefix can't be used.
    Invalid(String),
    Exists(String),
    ExistsStale(String),
    /// Another process is starting the pool just now.
    Starting(String),
    Absent(String),
    /// Another user owns this directory or can change it; the text says how.
    Foreign(PathBuf, String),
    Damaged {
        name: String,
        why: String,
    },
    /// The checkpoint or journal in this directory is missing or damaged.
    NoCheckpoint(PathBuf),
    /// The pool's processes are in another PID namespace.
    OtherHost(String),
    /// /proc isn't usable, so this process can't tell living processes from dead ones.
    Blind,
    /// The pool had data in memory. These data are lost.
    Lost(String),
    Io {
        what: String,
        path: PathBuf,
        error: Errno,
    },
    /// A failure of the node's daemon, as a sentence.
    Daemon(String),
}

impl PoolError {
    /// An error of the operation `what` on `path`. The message has both, with a space between them:
    /// `can't look at`, `can't make the records in`.
    pub fn io(what: &str, path: &Path, error: Errno) -> PoolError {
        PoolError::Io {
            what: what.to_owned(),
            path: path.to_owned(),
            error,
        }
    }

    /// Whether the error only means that a file couldn't be read: the pool may be sound.
    pub(crate) fn is_unknown(&self) -> bool {
        match self {
            PoolError::Io { error, .. } => cant_look(*error),
            PoolError::Blind => true,
            _ => false,
        }
    }

    /// The reason why a pool can't be used, as part of a sentence.
    pub(crate) fn why(self) -> String {
        match self {
            PoolError::Damaged { why, .. } => why,
            other => other.to_string(),
        }
    }

    pub(crate) fn unknown(name: &str, why: &str) -> PoolError {
        PoolError::Invalid(format!(
            "the pool '{name}' can't be looked at, so nothing was done: {why}"
        ))
    }

    pub(crate) fn medium(spec: &MediumSpec, dir: &Path, error: Errno) -> PoolError {
        PoolError::io(&format!("can't make the medium {spec} in"), dir, error)
    }
}

/// Whether an errno only means that this process couldn't read a file, not that the file is
/// damaged.
pub(crate) fn cant_look(e: Errno) -> bool {
    matches!(
        e,
        Errno::MFILE
            | Errno::NFILE
            | Errno::NOMEM
            | Errno::NOBUFS
            | Errno::ACCESS
            | Errno::PERM
            | Errno::INTR
            | Errno::AGAIN
    )
}

/// An errno's meaning, as part of a sentence.
pub(crate) fn words(e: Errno) -> String {
    match e {
        Errno::NODATA | Errno::INVAL => "not of this version of Forebay, or cut short".into(),
        e => std::io::Error::from(e).to_string(),
    }
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::Invalid(what) | PoolError::Daemon(what) => write!(f, "{what}"),
            PoolError::Exists(name) => write!(
                f,
                "the pool '{name}' exists already; use it, choose another name with --pool, or remove it with: forebay down --pool {name}"
            ),
            PoolError::ExistsStale(name) => write!(
                f,
                "the pool '{name}' exists already, but its keeper is dead; go on with it: forebay up --reopen --pool {name}; or remove it: forebay down --force --pool {name}"
            ),
            PoolError::Starting(name) => write!(
                f,
                "another 'forebay up' is starting the pool '{name}' just now; wait for it, or choose another name with --pool"
            ),
            PoolError::Absent(name) => write!(
                f,
                "there is no pool '{name}' on this node; start one with: forebay up --pool {name}; see what there is with: forebay pools"
            ),
            PoolError::Foreign(dir, why) => write!(
                f,
                "{} can't be trusted: it {why}; nothing there was used; \
                 set FOREBAY_HOME (for a medium: --media) to a directory of your own that nobody else can write to",
                dir.display()
            ),
            PoolError::Damaged { name, why } => write!(
                f,
                "the pool '{name}' can't be used ({why}); remove it with: forebay down --force --pool {name}"
            ),
            PoolError::NoCheckpoint(dir) => write!(
                f,
                "the checkpoint in {} is missing or damaged; nothing there was changed",
                dir.display()
            ),
            PoolError::OtherHost(name) => write!(
                f,
                "the pool '{name}' belongs to the processes of another PID namespace, which can't be seen from here; start the container in that of its host (--pid=host), or show it a mount of the pool (forebay mount)"
            ),
            PoolError::Blind => write!(
                f,
                "this process can't see itself in /proc, without which no pool can be used: living processes couldn't be distinguished from dead ones; mount a /proc where it runs"
            ),
            PoolError::Lost(name) => write!(
                f,
                "the pool '{name}' had data in memory, which has gone with a restart of the node; only pools with nothing but 'files' media can be reopened"
            ),
            PoolError::Io { what, path, error } => {
                write!(
                    f,
                    "{what} {}: {}",
                    path.display(),
                    std::io::Error::from(*error)
                )?;
                if *error == Errno::ACCESS
                    && std::env::var_os("FOREBAY_HOME").is_some_and(|h| path.starts_with(h))
                {
                    write!(
                        f,
                        "; FOREBAY_HOME names it: unset it, or set it to a directory of your own"
                    )?;
                }
                if *error == Errno::NOSPC {
                    write!(f, "; choose a smaller --media or another place")?;
                }
                if *error == Errno::FBIG {
                    write!(f, "; raise the limit of file sizes (ulimit -f)")?;
                }
                if *error == Errno::MFILE {
                    write!(f, "; raise the limit of open files (ulimit -n)")?;
                }
                if *error == Errno::NOMEM {
                    write!(f, "; a pool takes some GiB of addresses (ulimit -v)")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for PoolError {}
