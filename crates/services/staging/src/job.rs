//! One staging: its options, the objects of its source, and the state that its threads share.

use crate::report::{Ledger, Progress};
use crate::select::Selection;
use forebay_backing::{Meta, SlowStore};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Mutex;

/// Options of a staging.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Options {
    /// Number of threads that copy; 0 for one per core.
    pub threads: usize,
    /// Whether to compare the content of files of the same size, rather than their times.
    pub checksum: bool,
    /// Whether to sync the destination before reporting success.
    pub sync: bool,
    /// The names of the files to stage, directly in the source, without the directory's attributes.
    /// None: everything is staged.
    #[serde(skip)]
    pub only: Option<Names>,
    /// The objects of the source that are staged.
    #[serde(skip)]
    pub selection: Selection,
    /// Whether to write nothing, and only list what would be copied ([`crate::Report::planned`]).
    #[serde(skip)]
    pub dry_run: bool,
    /// Free room of the destination. If a staging needs more, it copies nothing. None: the room
    /// isn't checked.
    #[serde(skip)]
    pub room: Option<Room>,
}

/// Free room of a destination, and the words for a message.
#[derive(Clone, Debug)]
pub struct Room {
    /// Free room. Bytes.
    pub bytes: u64,
    /// A name of the destination for messages: `the pool 'p' (memory:8M)`.
    pub whose: String,
    /// Advice for the user if the room is too small.
    pub remedy: String,
}

/// Names of files in a directory.
pub type Names = std::collections::BTreeSet<Vec<u8>>;

impl Options {
    /// Returns the defaults for stage-in. The defaults don't sync, since nothing in a pool need
    /// outlive a loss of power.
    pub fn stage_in() -> Options {
        Options {
            threads: 0,
            checksum: false,
            sync: false,
            only: None,
            selection: Selection::default(),
            dry_run: false,
            room: None,
        }
    }

    /// Returns the defaults for stage-out.
    pub fn stage_out() -> Options {
        Options {
            threads: 0,
            checksum: false,
            sync: true,
            only: None,
            selection: Selection::default(),
            dry_run: false,
            room: None,
        }
    }

    pub(crate) fn thread_count(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n.min(1024),
        }
    }
}

/// An object of the source. `below`: the object's path relative to the source's root.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    #[serde(with = "path")]
    pub below: Vec<u8>,
    pub meta: Meta,
}

impl Entry {
    /// Returns the number of bytes to be copied, including holes.
    pub fn bytes(&self) -> u64 {
        if self.meta.is_file() {
            self.meta.size
        } else {
            0
        }
    }
}

/// A staging in progress.
pub(crate) struct Job<'a> {
    pub from: &'a dyn SlowStore,
    pub src: Vec<u8>,
    pub to: &'a dyn SlowStore,
    pub dst: Vec<u8>,
    pub options: &'a Options,
    pub threads: usize,
    pub progress: &'a Progress,
    pub ledger: Ledger,
    /// For each destination file with several links, by device and inode number: the source file to
    /// which it corresponds.
    pub claimed: Mutex<HashMap<(u64, u64), (u64, u64)>>,
    /// The directories that were created, in order of creation.
    pub made: Mutex<Vec<Vec<u8>>>,
}

/// Serialization of paths, which are bytes. Each byte becomes one character, so that nearly all
/// paths are readable.
pub mod path {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(path: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&path.iter().map(|&b| char::from(b)).collect::<String>())
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = text.chars().map(u8::try_from).collect::<Result<_, _>>();
        bytes.map_err(|_| D::Error::custom("not a path"))
    }
}
