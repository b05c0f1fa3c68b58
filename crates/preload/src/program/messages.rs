//! Lines on standard error. They are written by a raw system call, whatever libc's state, and most
//! of them once per process.

use std::sync::atomic::{AtomicBool, Ordering::*};

static COMPLAINED: AtomicBool = AtomicBool::new(false);

/// As text for a message.
pub fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// One line on standard error, once per process.
pub fn complain(what: &str) {
    if !COMPLAINED.swap(true, AcqRel) {
        say(what);
    }
}

/// One line on standard error.
pub fn say(what: &str) {
    let line = format!("forebay: {what}\n");
    // SAFETY: a valid buffer; a raw system call, whatever libc's state.
    unsafe {
        forebay_intercept::raw(
            libc::SYS_write,
            [2, line.as_ptr() as i64, line.len() as i64, 0, 0, 0],
        );
    }
}
