//! The line that a process prints before it ends because of a defect of ours: an assertion that
//! failed, or any other panic.
//!
//! An assertion states what our own code guarantees. If it fails, the process ends, as by SIGKILL:
//! what it might do next is unknown, and others repair what a process leaves. It may be a program
//! of a user, who has never heard of our files. So one line says what was believed and where, what
//! is left of the data, and what to do with the line. It is written by a raw system call, whatever
//! state the program is in.
//!
//! [`report_with`] sets the hook of this library's own copy of the standard library: panics of a
//! program in Rust that a shared library of ours is loaded into aren't concerned.

use crate::process::pid;
use std::io::Write;
use std::panic::PanicHookInfo;

/// Maximum length of a line, with its newline. Bytes.
const MAX_LINE: usize = 1024;
/// Bytes of a line that are reserved for the text after the failed assertion.
const END_ROOM: usize = 400;

/// Has panics of this process written as one line by `write`, instead of the standard library's
/// lines. The process ends as before.
pub fn report_with(write: fn(&[u8])) {
    std::panic::set_hook(Box::new(move |panic| {
        let mut buffer = [0; MAX_LINE];
        write(line_of(panic, &mut buffer));
    }));
}

/// As [`report_with`], on standard error. With `RUST_BACKTRACE`, the standard library's lines
/// follow.
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

/// Writes to standard error by a raw system call. Whether all was written: standard error may be
/// closed, or a file of a pool.
pub fn write_to_stderr(line: &[u8]) -> bool {
    // SAFETY: only borrowed for the call; a closed descriptor is an error.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    rustix::io::write(stderr, line) == Ok(line.len())
}

fn line_of<'a>(panic: &PanicHookInfo<'_>, buffer: &'a mut [u8; MAX_LINE]) -> &'a [u8] {
    let belief = panic.payload_as_str().unwrap_or("a panic");
    let (file, line) = panic.location().map_or(("?", 0), |l| (l.file(), l.line()));
    compose(belief, file, line, buffer)
}

/// The line about a belief that doesn't hold. A belief that is too long is cut.
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
    // Both sides of a comparison come on lines of their own.
    let controls = buffer[..begun].iter_mut().filter(|b| b.is_ascii_control());
    controls.for_each(|b| *b = b' ');
    let mut rest = &mut buffer[begun..];
    // Paths of the standard library are long; the end of one says most.
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
