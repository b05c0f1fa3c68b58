//! Messages between a staging and its movers: one line of JSON each, over the mover's standard
//! input and output. The remote shell may print other lines, which are skipped.

use crate::job::{Entry, path};
use crate::{Options, Report};
use forebay_backing::Meta;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Error, ErrorKind, Read, Result, Write};

/// Maximum length of a line. Bytes.
const MAX_LINE: u64 = 16 << 20;
/// Maximum number of files in one message. With all paths, such a message is far shorter than
/// `MAX_LINE`.
pub const MAX_FILES: usize = 512;

/// A message to a mover.
#[derive(Debug, Serialize, Deserialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time; it is written out at once"
)]
pub enum Order {
    Begin(Begin),
    Files(Vec<Entry>),
    /// No more files follow.
    End,
}

/// The staging's description, for a mover.
#[derive(Debug, Serialize, Deserialize)]
pub struct Begin {
    /// The version of Forebay that the leading process has.
    pub forebay: String,
    /// Whether files go into the pool; false: they go out of it.
    pub into_pool: bool,
    #[serde(with = "path")]
    pub src: Vec<u8>,
    #[serde(with = "path")]
    pub dst: Vec<u8>,
    pub options: Options,
    pub proof: Proof,
}

/// The data with which a mover checks that its host sees the same directory outside the pool.
#[derive(Debug, Serialize, Deserialize)]
pub enum Proof {
    /// The source's root as the leading process sees it. The mover must see the same metadata.
    Source(Meta),
    /// Path of a file that the leading process has just created in the destination.
    Target(#[serde(with = "path")] Vec<u8>),
}

/// A message from a mover.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromMover {
    Ready,
    /// The mover can't take part, for this reason.
    Cannot(String),
    /// Results since the mover's last message. Sent four times a second, even without new results.
    Did {
        files: u64,
        bytes: u64,
        report: Report,
    },
    /// All orders have been carried out.
    Finished,
}

/// Writes one message.
///
/// # Errors
/// Errors of writing.
pub fn write_message(to: &mut impl Write, what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Reads the next message. None: the other process has closed the stream.
///
/// # Errors
/// InvalidData: the line is longer than the maximum. Errors of reading.
pub fn read_message<T: for<'d> Deserialize<'d>>(from: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let n = from.take(MAX_LINE).read_until(b'\n', &mut line)?;
        if n == 0 || line.last() != Some(&b'\n') {
            return match n as u64 {
                MAX_LINE => Err(Error::new(ErrorKind::InvalidData, "a line without end")),
                _ => Ok(None),
            };
        }
        if let Ok(what) = serde_json::from_slice(&line) {
            return Ok(Some(what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back() {
        let every: Vec<u8> = (0..=255).collect();
        let mut bytes = b"Welcome to n1\n\"Welcome\"\n{}\n".to_vec();
        write_message(&mut bytes, &Order::End).unwrap();
        let order = Order::Begin(Begin {
            forebay: "1".into(),
            into_pool: false,
            src: every.clone(),
            dst: Vec::new(),
            options: Options::stage_out(),
            proof: Proof::Target(b"/a".to_vec()),
        });
        write_message(&mut bytes, &order).unwrap();
        bytes.extend_from_slice(b"\"End\"");
        let mut from = &bytes[..];
        assert!(matches!(read_message(&mut from), Ok(Some(Order::End))));
        let Ok(Some(Order::Begin(begin))) = read_message(&mut from) else {
            panic!()
        };
        assert_eq!(begin.src, every);
        // A truncated message isn't taken for a complete one.
        assert!(matches!(read_message::<Order>(&mut from), Ok(None)));
        let endless = vec![b'x'; MAX_LINE as usize + 1];
        assert!(read_message::<Order>(&mut &endless[..]).is_err());
    }
}
