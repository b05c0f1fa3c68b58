//! The text of a courier's note: a file that exists while bytes of an ended program may not be in
//! the pool yet. The preloaded library writes and locks notes; parents of programs and
//! `forebay run` read them.
//!
//! The first line has the courier's process id, and the process id and start time of the program's
//! parent at exec. Each further line says which bytes are lost.

use std::borrow::Cow;

/// The directory of the notes, inside the pool's directory on this host.
pub const DIR: &str = "couriers";

/// Prefix of the name of a note whose sentences a supervisor has printed: the preloaded library's
/// process between a program and a parent outside of the pool.
pub const REPORTED: &str = "reported-";

/// Maximum length of a note. Bytes.
pub const MAX_BYTES: usize = 4096;

/// The content of a note.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Text {
    pub courier: u32,
    /// Process id of the program's parent at exec.
    pub parent: u32,
    /// Start time of that parent, in clock ticks since boot; 0 if unknown.
    pub parent_start: u64,
    /// Which bytes are lost: sentences. Empty if the courier has reported nothing.
    pub lost: Vec<String>,
}

impl Text {
    /// Parses a note. One that isn't complete yet gives zeros.
    pub fn parse(bytes: &[u8]) -> Text {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.lines();
        let parse = |head: &str| {
            let mut words = head.split(' ');
            Some(Text {
                courier: words.next()?.parse().ok()?,
                parent: words.next()?.parse().ok()?,
                parent_start: words.next()?.parse().ok()?,
                lost: Vec::new(),
            })
        };
        let mut parsed = lines.next().and_then(parse).unwrap_or_default();
        parsed.lost = lines.map(str::to_owned).collect();
        parsed
    }

    /// Returns sentences for the user about process `pid`, whose courier has ended and left this
    /// note.
    pub fn sentences(&self, pid: u32) -> Cow<'_, [String]> {
        if !self.lost.is_empty() {
            return Cow::Borrowed(&self.lost);
        }
        let killed = format!(
            "not all that process {pid} has written may be in the pool, nor all of its input have \
             reached it: the process that carries them (forebay-courier) was killed; run the \
             program again"
        );
        Cow::Owned(vec![killed])
    }
}

/// Returns the name of the note about process `pid` of the PID namespace with the inode
/// `namespace`.
pub fn name(namespace: u64, pid: u32) -> String {
    format!("{namespace}-{pid}")
}

/// Returns the process id from a note's name, if the process is of the PID namespace `namespace`.
pub fn pid_in(name: &str, namespace: u64) -> Option<u32> {
    let (there, pid) = name.split_once('-')?;
    (there.parse() == Ok(namespace)).then(|| pid.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_who_waits_and_what_is_lost() {
        let note = Text::parse(b"7 8 9\none is lost\ntwo is lost\n");
        assert_eq!((note.courier, note.parent, note.parent_start), (7, 8, 9));
        assert_eq!(note.sentences(3).len(), 2);
        let killed = Text::parse(b"7 8 9\n");
        assert!(killed.sentences(3)[0].contains("process 3"));
        for incomplete in [&b""[..], b"7", b"7 8\n", b"x y z\n"] {
            assert_eq!(Text::parse(incomplete), Text::default(), "{incomplete:?}");
        }
    }

    #[test]
    fn a_name_has_namespace_and_process() {
        assert_eq!(pid_in(&name(12, 34), 12), Some(34));
        assert_eq!(pid_in(&name(12, 34), 13), None);
        for bad in ["", "12", "12-", "-34", "12-x"] {
            assert_eq!(pid_in(bad, 12), None, "{bad}");
        }
    }
}
