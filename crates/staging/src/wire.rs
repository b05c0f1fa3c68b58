//! Messages between a staging and its movers: a line of JSON each, over the mover's standard input
//! and output. Other lines come from a remote shell, and are skipped.

use crate::job::{Entry, path};
use crate::{Meta, Options, Report};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Error, ErrorKind, Read, Result, Write};

/// Longest line.
const MAX_LINE: u64 = 16 << 20;
/// Files of one message, and bytes of their paths: far less than a line may have.
pub const MAX_FILES: usize = 512;

/// To a mover.
#[derive(Debug, Serialize, Deserialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time; it is written out at once"
)]
pub enum Order {
    Begin(Begin),
    Files(Vec<Entry>),
    /// There are no more files.
    End,
}

/// What there is to be done.
#[derive(Debug, Serialize, Deserialize)]
pub struct Begin {
    /// The version of Forebay that stages.
    pub forebay: String,
    /// From the file system into the pool, not out of it.
    pub into_pool: bool,
    #[serde(with = "path")]
    pub src: Vec<u8>,
    #[serde(with = "path")]
    pub dst: Vec<u8>,
    pub options: Options,
    pub proof: Proof,
}

/// By what a mover tells that its host sees the same directory outside the pool.
#[derive(Debug, Serialize, Deserialize)]
pub enum Proof {
    /// The source's root as the first process sees it. So does each file have to look.
    Source(Meta),
    /// There is a file of this name, just made, in the destination.
    Target(#[serde(with = "path")] Vec<u8>),
}

/// From a mover.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    Ready,
    /// It can't take part.
    Cannot(String),
    /// What the mover did since its last message. Sent several times a second, in any case.
    Did {
        files: u64,
        bytes: u64,
        report: Report,
    },
    /// All that was to be done is done.
    Finished,
}

/// Says one thing.
pub fn say(to: &mut impl Write, what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Hears the next thing; None: the other side has gone.
pub fn hear<T: for<'d> Deserialize<'d>>(from: &mut impl BufRead) -> Result<Option<T>> {
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
        say(&mut bytes, &Order::End).unwrap();
        let order = Order::Begin(Begin {
            forebay: "1".into(),
            into_pool: false,
            src: every.clone(),
            dst: Vec::new(),
            options: Options::stage_out(),
            proof: Proof::Target(b"/a".to_vec()),
        });
        say(&mut bytes, &order).unwrap();
        bytes.extend_from_slice(b"\"End\"");
        let mut from = &bytes[..];
        assert!(matches!(hear(&mut from), Ok(Some(Order::End))));
        let Ok(Some(Order::Begin(begin))) = hear(&mut from) else {
            panic!()
        };
        assert_eq!(begin.src, every);
        // One that was cut off isn't taken for another.
        assert!(matches!(hear::<Order>(&mut from), Ok(None)));
        let endless = vec![b'x'; MAX_LINE as usize + 1];
        assert!(hear::<Order>(&mut &endless[..]).is_err());
    }
}
