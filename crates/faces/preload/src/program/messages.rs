//! Lines on standard error. A raw system call writes them, so libc's state doesn't matter. Most are
//! written once per process.

use crate::program::settings;
use forebay_runtime::defect;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering::*};

static COMPLAINED: AtomicBool = AtomicBool::new(false);

/// Returns bytes as text for a message.
pub fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Returns an error's words, without its number.
pub fn error(e: Errno) -> String {
    let text = e.to_string();
    let words = text.split(" (os error").next();
    words.unwrap_or_default().to_owned()
}

/// Writes one line to standard error, once per process.
pub fn complain(what: &str) {
    if !COMPLAINED.swap(true, AcqRel) {
        write_line(what);
    }
}

/// Writes one line to standard error.
pub fn write_line(what: &str) {
    let line = format!("forebay: {what}\n");
    // SAFETY: `line` outlives the call; a raw system call works whatever libc's state.
    unsafe {
        forebay_intercept::raw(
            libc::SYS_write,
            [2, line.as_ptr() as i64, line.len() as i64, 0, 0, 0],
        );
    }
}

/// Makes a failed assertion of this library write one line before it ends the program.
pub fn report_defects() {
    defect::report_with(|line| {
        let written = defect::write_to_stderr(line);
        if !written && let Some(settings) = settings::settings() {
            log_defect(settings.dir, line);
        }
    });
}

/// Appends a line to the log of the pool's keeper. Used if standard error can't be written (it is
/// closed, or a file of the pool).
fn log_defect(dir: &CStr, line: &[u8]) {
    let path = [dir.to_bytes(), b"/keeper.log"].concat();
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    if let Ok(log) = rustix::fs::open(path, flags, Mode::empty()) {
        let _ = rustix::io::write(&log, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_goes_to_the_log_that_is_there_and_makes_none() {
        let dir = std::env::temp_dir().join(format!("forebay-defect-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let name = std::ffi::CString::new(dir.to_str().unwrap()).unwrap();
        let log = dir.join("keeper.log");
        log_defect(&name, b"lost\n");
        assert!(!log.exists());
        std::fs::write(&log, "before\n").unwrap();
        log_defect(&name, b"forebay: a defect\n");
        assert_eq!(std::fs::read(&log).unwrap(), b"before\nforebay: a defect\n");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
