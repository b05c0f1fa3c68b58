//! Prints data to stdout and messages to stderr.

use crate::fail::Fail;
pub use crate::fail::{is_quiet, note, print_notice};
pub use forebay_media::count;
use std::io::{StdoutLock, Write};
use std::os::fd::AsFd;

/// The standard output, unbuffered. Unlike the standard library's, a write to a descriptor that
/// can't be written fails with EBADF. A closed standard output is `/dev/null`, which the standard
/// library opens before `main`.
pub struct Stdout(StdoutLock<'static>);

impl Stdout {
    pub fn lock() -> Stdout {
        Stdout(std::io::stdout().lock())
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(rustix::io::write(self.0.as_fd(), bytes)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Prints data unchanged.
pub fn write(bytes: &[u8]) -> Result<(), Fail> {
    let mut out = Stdout::lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Err(Fail::failed("")),
        Err(e) => Err(Fail::failed(format!(
            "can't write to the standard output: {e}"
        ))),
        Ok(()) => Ok(()),
    }
}

/// Prints a value as JSON, for programs.
pub fn json(value: &impl serde::Serialize) -> Result<(), Fail> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Fail::failed(format!("can't write JSON: {e}")))?;
    write((text + "\n").as_bytes())
}

/// Formats a duration for people: `1.2 s`, `15 ms`.
pub fn seconds(s: f64) -> String {
    match s {
        s if s < 0.9995 => format!("{:.0} ms", s * 1000.0),
        s if s < 99.95 => format!("{s:.1} s"),
        s if s < 3600.0 => format!("{} min {} s", s as u64 / 60, s as u64 % 60),
        s if s < 172_800.0 => format!("{} h {} min", s as u64 / 3600, s as u64 / 60 % 60),
        s => format!("{} days {} h", s as u64 / 86_400, s as u64 / 3600 % 24),
    }
}

/// Formats an age in whole seconds: `less than 1 s`, `12 s`, `2 min 5 s`.
pub fn age(s: u64) -> String {
    match s {
        0 => "less than 1 s".into(),
        1..100 => format!("{s} s"),
        _ => seconds(s as f64),
    }
}

/// Quotes a path or argument for a POSIX shell, if it needs quotes.
pub fn quoted(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&b);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        assert_eq!(seconds(0.0154), "15 ms");
        assert_eq!(seconds(1.26), "1.3 s");
        assert_eq!(seconds(0.9999), "1.0 s");
        assert_eq!(seconds(125.0), "2 min 5 s");
        assert_eq!(seconds(7300.0), "2 h 1 min");
        assert_eq!(age(0), "less than 1 s");
        assert_eq!(age(5), "5 s");
        assert_eq!(age(125), "2 min 5 s");
        assert_eq!(quoted("/a/b"), "/a/b");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
