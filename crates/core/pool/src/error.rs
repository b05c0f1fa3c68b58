//! Errors of the crate, apart from those of the pool on this node ([`PoolError`]).

use forebay_client::PoolError;
use rustix::io::Errno;
use std::fmt;

/// Why a node can't be started, or a peer not be reached.
#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// An error of the pool on this node.
    Pool(PoolError),
    /// An error of the network.
    Network(forebay_net::Error),
    /// The node of this name isn't in the pool's map.
    NotInMap(String),
    /// The peer's reply to a hello can't be read.
    Language,
    /// The host lacks something that the node needs; the sentence says what.
    Host(String),
    /// The node's store wasn't made.
    NoStore,
    /// A thread can't be started.
    Thread(Errno),
    /// The limit on a daemon's memory is too low.
    LittleMemory {
        /// The lowest limit that is allowed. Bytes.
        least: u64,
    },
    /// The limit on a daemon's bandwidth is too low for the request timeout.
    LittleBandwidth {
        /// The request timeout. Seconds.
        request_timeout: f64,
        /// The lowest limit that is allowed. Bytes per second.
        least: u64,
    },
    /// The text is no choice of cores.
    NoCores(String),
    /// This core doesn't exist for this process.
    AbsentCore(usize),
    /// The daemon can't be bound to its cores.
    Unbound(Errno),
    /// The text is no network.
    NoNetwork(String),
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Error {
        Error::Pool(error)
    }
}

impl From<forebay_net::Error> for Error {
    fn from(error: forebay_net::Error) -> Error {
        Error::Network(error)
    }
}

impl From<Error> for PoolError {
    fn from(error: Error) -> PoolError {
        match error {
            Error::Pool(error) => error,
            other => PoolError::Daemon(other.to_string()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Pool(error) => write!(f, "{error}"),
            Error::Network(error) => write!(f, "{error}"),
            Error::NotInMap(name) => write!(f, "{name} isn't in the pool's map"),
            Error::Language => f.write_str("it speaks another language"),
            Error::Host(why) => f.write_str(why),
            Error::NoStore => f.write_str("its store isn't there"),
            Error::Thread(errno) => write!(f, "can't start a thread: {errno}"),
            Error::LittleMemory { least } => {
                write!(f, "--memory: a daemon needs at least {} MiB", least >> 20)
            }
            Error::LittleBandwidth {
                request_timeout,
                least,
            } => write!(
                f,
                "--bandwidth: with a request timeout of {request_timeout} s, at least {}M; else \
                 programs that move much would get errors",
                least.div_ceil(1 << 20)
            ),
            Error::NoCores(text) => write!(
                f,
                "'{text}' is neither a number of cores nor a list such as 0-3,8"
            ),
            Error::AbsentCore(core) => {
                write!(f, "--cpus: there is no core {core} for this process")
            }
            Error::Unbound(errno) => write!(f, "--cpus: the daemon can't be bound: {errno}"),
            Error::NoNetwork(text) => write!(
                f,
                "'{text}' is no network: write an address and a prefix, as in 10.1.0.0/16"
            ),
        }
    }
}

impl std::error::Error for Error {}
