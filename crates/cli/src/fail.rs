//! Errors as the user sees them, and exit codes.

use forebay_client::{PoolError, Starting};
use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Exit codes. The table for users is [`TABLE`] and docs/reference/cli.md.
pub mod code {
    pub const OK: u8 = 0;
    pub const FAILED: u8 = 1;
    pub const USAGE: u8 = 2;
    pub const NO_POOL: u8 = 3;
    /// Bytes of a program that doesn't see the pool are lost (EX_IOERR).
    pub const LOST: u8 = 74;
    pub const STAGE_OUT: u8 = 120;
    pub const STAGE_IN: u8 = 121;
    pub const NOT_EXECUTABLE: u8 = 126;
    pub const NOT_FOUND: u8 = 127;
}

/// The table of exit codes that `forebay help` prints.
pub const TABLE: &str = "\
Exit codes:
    0  done
    1  failed; the message says what to do
    2  wrong usage
    3  there is no such pool, or it can't be used
   74  `run`, `exec`: the program ended well, but bytes are lost; a message says which
  120  staging is incomplete (of `run`: stage-out; the pool stays)
  121  stage-in of `run` failed; nothing was run
  126  the program can't be executed
  127  the program was not found
  128+N  `run`: the program was killed by signal N
  else  `run`, `exec`: the program's own exit code";

/// The reason why a command fails, in one line, and its exit code.
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
            print_notice(&self.message);
        }
    }
}

/// Prints one line for the user, `forebay: …`. Ignores a stderr that can't be written.
pub fn print_notice(message: impl std::fmt::Display) {
    let text = without_escapes(&without_numbers(message));
    let _ = writeln!(std::io::stderr(), "forebay: {text}");
}

/// Replaces control characters in a message, except newlines and tabs. Names in a message may be
/// chosen by others, and a terminal would obey their escapes.
fn without_escapes(text: &str) -> String {
    let harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars()
        .map(|c| if harmless(c) { c } else { '?' })
        .collect()
}

/// Removes from a message the numbers that std and rustix append to errors: `No such file or
/// directory (os error 2)`.
fn without_numbers(message: impl Display) -> String {
    const BEFORE: &str = " (os error ";
    let text = message.to_string();
    let mut parts = text.split(BEFORE);
    let mut short = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => short += rest,
            _ => short = short + BEFORE + part,
        }
    }
    short
}

/// Whether `-q` was given.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Sets whether summaries and remarks are suppressed.
pub fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Relaxed);
}

/// Whether `-q` was given.
pub fn is_quiet() -> bool {
    QUIET.load(Relaxed)
}

/// Prints a summary or remark, unless `-q` was given.
pub fn note(message: impl Display) {
    if !is_quiet() {
        print_notice(message);
    }
}

impl From<PoolError> for Fail {
    fn from(e: PoolError) -> Fail {
        let e = match e {
            // A pool that is still being created looks damaged because half of it is missing.
            PoolError::Damaged { name, .. } if Starting::is_held(&name) => {
                PoolError::Starting(name)
            }
            e => e,
        };
        let code = match e {
            PoolError::Invalid(_) => code::USAGE,
            PoolError::Exists(_)
            | PoolError::ExistsStale(_)
            | PoolError::Starting(_)
            | PoolError::Io { .. }
            | PoolError::Daemon(_) => code::FAILED,
            PoolError::Absent(_)
            | PoolError::Foreign(..)
            | PoolError::OtherHost(_)
            | PoolError::Blind
            | PoolError::Damaged { .. }
            | PoolError::Lost(_)
            | PoolError::NoCheckpoint(_) => code::NO_POOL,
        };
        Fail::new(code, e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_words_only() {
        let io = std::io::Error::from_raw_os_error(2);
        let text = without_numbers(format!("a: {io}; b: {io}"));
        assert_eq!(
            text,
            "a: No such file or directory; b: No such file or directory"
        );
        let odd = "x (os error y) (os error";
        assert_eq!(without_numbers(odd), odd);
    }

    #[test]
    fn names_reach_no_terminal_with_escapes() {
        let odd = "/fb/\x1b[31mred\u{9b}0m\r: can't be read;\n\tnext: ü";
        let shown = without_escapes(odd);
        assert_eq!(shown, "/fb/?[31mred?0m?: can't be read;\n\tnext: ü");
    }
}
