//! Carries out other nodes' requests on this node's store.
//!
//! [`Server::serve`] lets a request pass or refuses it (`fences.rs`), and chooses by the request's
//! class whether its operation may wait. The table's `dispatch` then calls the request's handler.
//! The handlers are methods of [`Call`], in files by theme with one trait each
//! (`peers/requests.rs`).
//!
//! A handler makes the call that a process of this node would make; no rule is implemented here.
//! This module checks arguments and whether this node is the home (`call.rs`), and has the state on
//! which other nodes rely: the files that they have open (`opened.rs`), this node's parts of their
//! files (`parts.rs`), the fences (`fences.rs`).
//!
//! Each request has a class ([`Class`]). A request's handler may send other nodes requests of lower
//! classes only, so that nodes can't wait for each other in a circle. Requests of the classes
//! `Leaf` and `Entry` don't wait for other operations on names: such requests return EAGAIN, and
//! the requesting node sends them again.

mod attributes;
mod call;
mod controls;
mod copy;
mod create;
mod data;
mod entries;
mod fences;
mod links;
mod locks;
mod lookups;
mod names;
mod opened;
pub mod origin;
mod parts;
mod search;
mod stripes;

pub use crate::peers::requests::{Class, Reply};
pub use opened::BETWEEN_CHECKS;

use crate::Cluster;
use crate::peers::requests::kind;
use crate::peers::requests::{Repeat, Time, dispatch, find};
use call::*;
use forebay_placement::NodeId;
use forebay_runtime::threads::lock;
use forebay_store::ObjectId;
use opened::OpenThere;
use parts::OpenParts;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Mutex;

/// The daemon's state about other nodes: the files that they have open here, and their fences.
#[derive(Default)]
pub struct Server {
    open: Mutex<HashMap<(NodeId, ObjectId), OpenThere>>,
    parts: OpenParts,
    /// Requests of other nodes to this node's origin service.
    pub origins: origin::Origins,
    fences: fences::Fences,
    /// Locked during each request of the class `Names`, so that they run one at a time. True after
    /// [`Server::begin_names`] has thawed the directories that an earlier daemon left frozen.
    names: Mutex<bool>,
}

impl Server {
    /// Returns the class of a kind of request; None if there is no such kind.
    pub fn class(kind: u16) -> Option<Class> {
        find(kind).map(|request| request.class)
    }

    /// Whether a request of this kind may be carried out a second time, when it isn't known whether
    /// it was carried out before its home's daemon was restarted.
    pub fn repeatable(kind: u16) -> bool {
        find(kind).is_some_and(|request| request.repeat != Repeat::Once)
    }

    /// Whether the home records, in a file that outlives its daemon, that a request of this kind
    /// was carried out.
    pub fn recorded(kind: u16) -> bool {
        find(kind).is_none_or(|request| request.repeat != Repeat::Harmless)
    }

    /// Whether carrying out a request of this kind may take longer than the request timeout
    /// ([`Time::Long`]).
    pub fn is_long(kind: u16) -> bool {
        find(kind).is_some_and(|request| request.time == Time::Long)
    }

    /// Restores the state that an earlier daemon kept in its own memory for the reply `answer` to a
    /// request of `node`. Called when that reply is sent again.
    pub fn answered_again(
        &self,
        cluster: &Cluster<'_>,
        node: NodeId,
        kind: u16,
        head: &[u8],
        answer: &[u8],
    ) {
        // The two requests have the same arguments and replies.
        if kind == kind::CREATE || kind == kind::CREATE_THERE {
            self.created_again(cluster, node, head, answer);
        }
    }

    /// On the node of names: thaws the directories that an earlier daemon, killed during a change,
    /// has left frozen. Does so once; the caller repeats the call until it succeeds.
    ///
    /// # Errors
    /// EHOSTDOWN if a node can't be reached.
    pub fn begin_names(&self, cluster: &Cluster<'_>) -> Result<(), Errno> {
        let mut begun = lock(&self.names);
        if !*begun && cluster.changes_names() {
            cluster.namespace().begin_names()?;
        }
        *begun = true;
        Ok(())
    }

    /// Carries out a request of `from`. May wait for locks of the store, and for replies of other
    /// nodes.
    ///
    /// # Errors
    /// Those of the operation; EPROTO if `kind` and `head` aren't a request; ESTALE if the
    /// requesting node's epoch of names differs from this node's; EREMCHG if this node isn't the
    /// home; EOWNERDEAD if the requesting node has lost its locks on the file.
    pub fn serve(
        &self,
        cluster: &Cluster<'_>,
        from: NodeId,
        kind: u16,
        head: &[u8],
        body: &[u8],
    ) -> Result<Reply, Errno> {
        let request = find(kind).ok_or(Errno::PROTO)?;
        let _passed = self.fences.pass(cluster, from, request, head)?;
        let _names;
        let cluster = match request.class {
            Class::Leaf | Class::Entry => cluster.nonblocking(),
            Class::Composite | Class::Bulk => *cluster,
            Class::Names => {
                _names = lock(&self.names);
                *cluster
            }
        };
        let call = Call {
            server: self,
            cluster,
            from,
        };
        dispatch(&call, kind, head, body)
    }
}
