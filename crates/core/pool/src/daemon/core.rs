//! Passes the requests of this node's processes and of its daemon on: each to the link to its home,
//! or, if this node is the home, to [`Home`].

use super::home::Home;
use super::link::Links;
use super::local_node::LocalNode;
use super::pending::{Handling, PendingRequest, Waiting};
use super::renewals::Renewals;
use super::wire::OWN;
use forebay_client::requests::{Left, Replies, Taken};
use forebay_net::NodeId;
use rustix::io::Errno;
use std::sync::Arc;

pub struct Core {
    pub links: Arc<Links>,
    pub home: Arc<Home>,
    pub renewals: Arc<Renewals>,
}

impl Core {
    /// The core of a daemon that has no links yet. `left`: the requests that earlier daemons have
    /// left in the records of replies.
    pub fn new(local: LocalNode, records: Replies, left: Vec<Left>) -> Core {
        let links = Links::new(local);
        Core {
            home: Arc::new(Home::new(links.clone(), records, left)),
            links,
            renewals: Arc::default(),
        }
    }

    pub fn local(&self) -> &LocalNode {
        &self.links.local
    }

    fn handling(&self, kind: u16) -> Handling {
        let serve = self.local().serve.get();
        serve.map_or(Handling::default(), |serve| Handling {
            repeatable: serve.repeatable(kind),
            is_long: serve.is_long(kind),
        })
    }

    /// Sends the request of a process of this node.
    pub fn ask_for(&self, taken: Arc<Taken>) {
        let handling = self.handling(taken.kind());
        let request_timeout = self.local().options.request_timeout;
        let lazily = taken.is_one_way();
        self.ask(
            PendingRequest::of_cell(taken, handling, request_timeout),
            lazily,
        );
    }

    /// Registers those requests of an earlier daemon that have numbers, so that none of them is
    /// reported as settled before it is answered.
    pub fn expect(&self, left: &[Arc<Taken>]) {
        for taken in left.iter().filter(|t| t.number() != 0) {
            if taken.node() == self.local().me {
                self.home.expect(taken.number());
            } else if let Some(link) = self.links.get(taken.node()) {
                link.expect(taken.number());
            }
        }
    }

    /// Sends one-way requests to `node` that were waiting for another message.
    pub fn flush(&self, node: NodeId) {
        if let Some(connection) = self.links.get(node).and_then(|link| link.connection()) {
            connection.flush();
        }
    }

    /// Sends a request of this daemon.
    pub fn ask_here(&self, node: NodeId, kind: u16, waiting: Arc<Waiting>) {
        let handling = self.handling(kind);
        let request_timeout = self.local().options.request_timeout;
        let pending = PendingRequest::of_here(node, kind, handling, request_timeout, waiting);
        self.ask(pending, false);
    }

    fn ask(&self, pending: Arc<PendingRequest>, lazily: bool) {
        if pending.kind >= OWN {
            return pending.fail(Errno::PROTO);
        }
        if pending.handling.is_long {
            self.renewals.add(&pending);
        }
        if pending.node == self.local().me {
            return self.home.serve_own_request(pending);
        }
        match self.links.get(pending.node) {
            Some(link) => link.post(pending, lazily),
            None => pending.fail(Errno::HOSTDOWN),
        }
    }

    /// Stops the daemon's renewals, links, transport and workers.
    pub fn stop(&self) {
        self.local().begin_stop();
        self.renewals.stop();
        self.links.all().iter().for_each(|l| l.stop());
        self.local().stop();
    }
}
