//! Answers other nodes: carries out on this node's store what they ask.

use crate::Store;
use forebay_placement::NodeId;
use rustix::io::Errno;

/// Who works on a question: a question of one class may wait for answers to those of a lower one
/// only, so that workers of several nodes never wait for each other in a circle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Needs nothing but this node's store.
    Leaf,
    /// May ask other nodes questions of the class before.
    Composite,
    /// Changes directories: one at a time in the whole pool. May ask for all others.
    Names,
}

/// What is told to who has asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The answer, encoded; at most [`super::MAX_HEAD`] bytes.
    pub head: Vec<u8>,
    /// Bytes that go with it; at most [`super::MAX_BODY`].
    pub body: Vec<u8>,
}

/// What this node keeps for others: the files they have open, and their locks. Belongs to the daemon.
#[derive(Default)]
pub struct Server {}

impl Server {
    /// The class of a kind of question; None if there is no such kind.
    pub fn class(kind: u16) -> Option<Class> {
        let _ = kind;
        None
    }

    /// Whether a question of this kind may be carried out a second time, when nobody knows whether it
    /// was before its home's daemon was started anew.
    pub fn repeatable(kind: u16) -> bool {
        let _ = kind;
        false
    }

    /// Carries out what `from` asks. May take as long as locks are held; may ask other nodes.
    ///
    /// # Errors
    /// Those of the operation; EPROTO for what isn't a question; ESTALE if the asker's names
    /// are older or newer than this node's; EREMCHG if this node isn't the home.
    pub fn serve(
        &self,
        store: &Store,
        from: NodeId,
        kind: u16,
        head: &[u8],
        body: &[u8],
    ) -> Result<Reply, Errno> {
        let _ = (store, from, kind, head, body);
        Err(Errno::PROTO)
    }

    /// Gives up all that is kept for `node`: its daemon has ended.
    pub fn gone(&self, store: &Store, node: NodeId) {
        let _ = (store, node);
    }
}
