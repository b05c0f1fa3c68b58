//! Errors as the user sees them, and the exit codes.

use forebay_client::PoolError;
use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Exit codes. The table for users is [`TABLE`] and docs/reference/cli.md.
pub mod code {
    pub const OK: u8 = 0;
    pub const FAILED: u8 = 1;
    pub const USAGE: u8 = 2;
    pub const NO_POOL: u8 = 3;
    pub const STAGE_OUT: u8 = 120;
    pub const STAGE_IN: u8 = 121;
    pub const NOT_EXECUTABLE: u8 = 126;
    pub const NOT_FOUND: u8 = 127;
}

/// The exit codes for `forebay help`.
pub const TABLE: &str = "\
Exit codes:
    0  done
    1  failed; the message says what to do
    2  wrong usage
    3  there is no such pool, or it can't be used
  120  staging is incomplete (of `run`: stage-out; the pool stays)
  121  stage-in of `run` failed; nothing was run
  126  the program can't be executed
  127  the program was not found
  128+N  `run`: the program was killed by signal N
  else  `run`, `exec`: the program's own exit code";

/// Why a command fails: one line, and the exit code.
#[derive(Debug)]
pub struct Fail {
    pub code: u8,
    pub message: String,
}

impl Fail {
    pub fn new(code: u8, message: impl Display) -> Fail {
        Fail {
            code,
            message: message.to_string(),
        }
    }

    pub fn usage(message: impl Display) -> Fail {
        Fail::new(code::USAGE, message)
    }

    pub fn failed(message: impl Display) -> Fail {
        Fail::new(code::FAILED, message)
    }

    /// Prints the message, if there is one.
    pub fn print(&self) {
        if !self.message.is_empty() {
            say(&self.message);
        }
    }
}

/// Prints one line for the user, `forebay: …`. Ignores a stderr that can't be written.
pub fn say(message: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "forebay: {message}");
}

/// How much is said: 0 for `-q`, 2 for `-v`.
static LEVEL: AtomicU8 = AtomicU8::new(1);

/// Sets how much is said.
pub fn set_level(quiet: bool, verbose: bool) {
    LEVEL.store(if quiet { 0 } else { 1 + u8::from(verbose) }, Relaxed);
}

/// Whether `-q` was given.
pub fn is_quiet() -> bool {
    LEVEL.load(Relaxed) == 0
}

/// Prints a summary or remark: not with `-q`.
pub fn note(message: impl Display) {
    if !is_quiet() {
        say(message);
    }
}

/// Prints one step of the work: with `-v` only.
pub fn detail(message: impl Display) {
    if LEVEL.load(Relaxed) > 1 {
        say(message);
    }
}

impl From<PoolError> for Fail {
    fn from(e: PoolError) -> Fail {
        let code = match e {
            PoolError::Invalid(_) => code::USAGE,
            PoolError::Exists(_)
            | PoolError::ExistsStale(_)
            | PoolError::Io { .. }
            | PoolError::Daemon(_) => code::FAILED,
            PoolError::Absent(_)
            | PoolError::Foreign(..)
            | PoolError::Elsewhere(_)
            | PoolError::Blind
            | PoolError::Damaged { .. }
            | PoolError::Lost(_)
            | PoolError::NoCheckpoint(_) => code::NO_POOL,
        };
        Fail::new(code, e)
    }
}
