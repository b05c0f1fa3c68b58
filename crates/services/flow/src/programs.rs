//! Running short programs, with limits on time and on the size of their output.

use crate::Result;
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum run time of a short program, such as `squeue` or `forebay campaign`.
pub const SHORT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum size of output that is read. Bytes.
const MAX_OUTPUT_BYTES: u64 = 4 << 20;

/// Runs a program, and returns its standard output. Blocks.
///
/// # Errors
/// The program can't be started or takes too long; or it fails: the error is the program's own
/// message.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("{shown}: {e}"))?;
    let (out, err) = (read(child.stdout.take()), read(child.stderr.take()));
    let until = Instant::now() + SHORT;
    let status = loop {
        match child.try_wait().map_err(|e| format!("{shown}: {e}"))? {
            Some(status) => break status,
            None if Instant::now() > until => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{shown} took longer than {} s", SHORT.as_secs()));
            }
            None => std::thread::sleep(POLL_INTERVAL),
        }
    };
    if status.success() {
        return Ok(out.join().unwrap_or_default());
    }
    let message = err.join().unwrap_or_default();
    let message = message.trim().trim_start_matches("forebay: ");
    match message {
        "" => Err(format!("{shown}: {status}")),
        message => Err(message.to_owned()),
    }
}

/// Reads a pipe in a thread, so that the program never waits for a reader.
fn read(from: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = (&mut from).take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes);
            let _ = std::io::copy(&mut from, &mut std::io::sink());
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_messages() {
        let sh = |script: &str| output(Command::new("sh").args(["-c", script]));
        assert_eq!(sh("echo a; echo b >&2"), Ok("a\n".into()));
        assert_eq!(sh("echo 'forebay: bad' >&2; exit 1"), Err("bad".into()));
        assert!(sh("exit 3").unwrap_err().contains("exit status: 3"));
        // More output than a pipe holds, and than the limit.
        let many = sh("head -c 6000000 /dev/zero | tr '\\0' x").unwrap();
        assert_eq!(many.len() as u64, MAX_OUTPUT_BYTES);
        assert!(output(&mut Command::new("/no/such")).is_err());
    }
}
