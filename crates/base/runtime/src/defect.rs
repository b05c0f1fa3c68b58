//! The line that a process prints before it ends because of a bug in Forebay: a failed assertion,
//! or any other panic.
//!
//! An assertion states what our own code guarantees. If an assertion fails, the process ends as by
//! SIGKILL: the process's further behaviour is unknown, and other processes repair what it leaves.
//! The process may be a program of a user who has never heard of our source files. So one line says
//! which assertion failed and where, what remains of the data, and what to do with the line. The
//! line is written by a raw system call, whatever state the program is in.
//!
//! [`report_with`] sets the hook of this library's own copy of the standard library. So if a shared
//! library of ours is loaded into a Rust program, the program's panics aren't affected.

use crate::process::pid;
use std::io::Write;
use std::panic::PanicHookInfo;

/// Maximum length of the line, with its newline. Bytes.
const MAX_LINE: usize = 1024;
/// Number of bytes of the line that are reserved for the text after the failed assertion.
const END_ROOM: usize = 400;

/// Makes panics of this process call `write` with one line, instead of printing the standard
/// library's lines. The process ends as before.
pub fn report_with(write: fn(&[u8])) {
    std::panic::set_hook(Box::new(move |panic| {
        let mut buffer = [0; MAX_LINE];
        write(line_of(panic, &mut buffer));
    }));
}

/// As [`report_with`]; the line goes to standard error. If `RUST_BACKTRACE` is set, the standard
/// library's lines follow.
pub fn report() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let mut buffer = [0; MAX_LINE];
        write_to_stderr(line_of(panic, &mut buffer));
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            before(panic);
        }
    }));
}

/// Writes to standard error by a raw system call. Returns whether all was written: standard error
/// may be closed, or a file of a pool.
pub fn write_to_stderr(line: &[u8]) -> bool {
    // SAFETY: descriptor 2 is borrowed only for the call, which fails if it is closed.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    rustix::io::write(stderr, line) == Ok(line.len())
}

fn line_of<'a>(panic: &PanicHookInfo<'_>, buffer: &'a mut [u8; MAX_LINE]) -> &'a [u8] {
    let belief = panic.payload_as_str().unwrap_or("a panic");
    let (file, line) = panic.location().map_or(("?", 0), |l| (l.file(), l.line()));
    compose(belief, file, line, buffer)
}

/// Composes the line about the failed assertion `belief`. A text of `belief` that is too long is
/// cut.
fn compose<'a>(belief: &str, file: &str, line: u32, buffer: &'a mut [u8; MAX_LINE]) -> &'a [u8] {
    let mut rest = &mut buffer[..MAX_LINE - END_ROOM];
    let version = env!("CARGO_PKG_VERSION");
    let _ = write!(
        rest,
        "forebay: a defect of Forebay {version} ends process {}: ",
        pid()
    );
    let _ = rest.write(belief.as_bytes());
    let begun = MAX_LINE - END_ROOM - rest.len();
    // The message of assert_eq has both values on lines of their own: newlines become spaces.
    let controls = buffer[..begun].iter_mut().filter(|b| b.is_ascii_control());
    controls.for_each(|b| *b = b' ');
    let mut rest = &mut buffer[begun..];
    // Paths of the standard library are long; their ends are the most informative.
    let from = file.len().saturating_sub(END_ROOM / 4);
    let _ = writeln!(
        rest,
        " ({}:{line}); what it wrote stays in the pool, as after a kill, and other processes go on; \
         please report this line where you got Forebay",
        file.get(from..).unwrap_or("?"),
    );
    let len = MAX_LINE - rest.len();
    &buffer[..len]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn composed(belief: &str, file: &str) -> String {
        let mut buffer = [0; MAX_LINE];
        String::from_utf8_lossy(compose(belief, file, 7, &mut buffer)).into_owned()
    }

    #[test]
    fn a_line_has_belief_and_place_and_is_one_line_however_long_they_are() {
        let line = composed("a sum\n  left: 1\n right: 2", "crates/a.rs");
        assert!(line.starts_with("forebay: a defect of Forebay "), "{line}");
        assert!(line.contains("a sum   left: 1  right: 2 (crates/a.rs:7); what it wrote stays"));
        for (belief, file) in [(2000, 20), (600, 2000), (0, 0)] {
            let line = composed(&"b".repeat(belief), &"f".repeat(file));
            assert!(line.ends_with("where you got Forebay\n"), "{line}");
            assert_eq!(line.lines().count(), 1, "{line}");
        }
    }

    #[test]
    #[ignore = "it fails on purpose: the test below runs it in a process of its own"]
    fn fails() {
        report();
        let held = std::hint::black_box(3);
        assert!(held == 4, "a lock that is released was held: {held}");
    }

    #[test]
    fn a_failed_assertion_is_one_line_of_ours() {
        let mut run = Command::new(std::env::current_exe().unwrap());
        run.env_remove("RUST_BACKTRACE");
        run.args([
            "--ignored",
            "--exact",
            "--nocapture",
            "defect::tests::fails",
        ]);
        let out = run.output().unwrap();
        assert!(!out.status.success());
        let errors = String::from_utf8_lossy(&out.stderr);
        let line = errors.lines().find(|l| l.starts_with("forebay:")).unwrap();
        assert!(
            line.contains("a lock that is released was held: 3 ("),
            "{errors}"
        );
        assert!(line.contains("runtime/src/defect.rs:"), "{errors}");
        assert!(!errors.contains("panicked at"), "{errors}");
    }
}
