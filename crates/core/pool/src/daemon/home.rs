//! The home's side: requests of other nodes to this node.
//!
//! A thread of the transport registers a request and passes it to a worker of its class. It may
//! carry out a `Leaf` or an `Entry` itself.

use super::Serve;
use super::core::{Core, lock};
use super::direct::take_unreachable;
use super::link::Live;
use super::link::traced;
use super::pending::{Got, PendingRequest, code};
use super::reply_cache::{Kept, Settled, Verdict};
use super::room::{Buffer, Buffers, Outgoing};
use super::wire::{
    self, GET_MAP, HELLO, Hello, MAP, MAX_MAP, OWN, PROGRESS, ProgressQuery, RequestHead,
};
use crate::limits::Budget;
use forebay_cluster::peers::{MAX_BODY, MAX_HEAD};
use forebay_cluster::serve::{Class, Reply};
use forebay_net::transport::Answer;
use forebay_net::{
    Body, Connection, Error, Handler, Incoming, Landing, NodeId, Peer, Responder, Source,
};
use forebay_placement::PoolMap;
use rustix::io::Errno;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a reply waits for room in the buffers.
const WAITS: Duration = Duration::from_secs(2);

/// The handler of other nodes' requests.
pub struct Home(pub Weak<Core>);

/// Memory for the bytes of requests and replies.
pub struct Served {
    buffers: Arc<Buffers>,
    answers: Outgoing,
}

impl Served {
    /// Buffers within this budget.
    pub fn new(budget: &Budget) -> Served {
        Served {
            buffers: Arc::new(Buffers::new(budget.requests, budget.kept)),
            answers: Outgoing::new(budget.replies),
        }
    }
}

impl Handler for Home {
    fn serve(&self, request: Incoming, reply: Responder) {
        // Without a reply, the requester sends the request again: it wasn't carried out.
        let Some(core) = self.0.upgrade() else { return };
        if core.serving().is_none() {
            return;
        }
        if request.kind == PROGRESS {
            // Answered on this thread: all workers may be busy with long requests.
            core.heard_from(request.connection.peer().node);
            progress(&core, &request.head, reply);
        } else if request.kind >= OWN {
            own(core, request, reply);
        } else {
            serve_request(&core, request, reply, false);
        }
    }

    fn serve_here(&self, request: Incoming, reply: Responder) {
        let Some(core) = self.0.upgrade() else { return };
        if core.serving().is_some() && request.kind < OWN {
            return serve_request(&core, request, reply, true);
        }
        self.serve(request, reply);
    }

    fn is_brief(&self, kind: u16) -> bool {
        kind == forebay_cluster::peers::requests::kind::CLOSE
    }

    fn landing(
        &self,
        _from: Peer,
        kind: u16,
        _head: &[u8],
        length: usize,
    ) -> Option<Box<dyn Landing>> {
        if kind == MAP && length <= MAX_MAP {
            return Some(Box::new(vec![0; length]));
        }
        if kind >= OWN || length > MAX_BODY {
            return None;
        }
        let core = self.0.upgrade()?;
        Some(Box::new(core.served.buffers.get(length)?))
    }

    fn ended(&self, peer: Peer, _why: &Error) {
        if let Some(link) = self.0.upgrade().and_then(|core| core.link(peer.node)) {
            link.ended();
        }
    }
}

/// Where the reply to a request is to be sent.
pub enum Way {
    /// To another node.
    Peer(Responder),
    /// To a process of this node, or to the daemon itself.
    Own(Arc<PendingRequest>),
}

impl Way {
    fn fail(self, core: &Core, error: Errno) {
        match self {
            Way::Peer(reply) => fail(reply, error),
            Way::Own(pending) => {
                lock(&core.own).remove(&pending.number());
                pending.fail(error);
            }
        }
    }

    fn answer(self, core: &Core, kept: &Kept, until: Instant) {
        let pending = match self {
            Way::Peer(reply) => return answer(core, reply, kept, until),
            Way::Own(pending) => pending,
        };
        lock(&core.own).remove(&pending.number());
        let Some((head, inline)) = wire::decode_answer(&kept.head) else {
            return pending.fail(Errno::PROTO);
        };
        let bytes = kept.body.as_deref().map_or(inline, |body| body);
        pending.answer(kept.status, head, Got::Inline(bytes));
    }
}

/// Sends a reply as soon as there is room, at the latest at `until`. If there is none, sends
/// nothing; the requester then sends the request again.
fn answer(core: &Core, reply: Responder, kept: &Kept, until: Instant) {
    // A peer that doesn't receive its replies must not delay those to others for long.
    let until = until.min(Instant::now() + WAITS);
    let body = match &kept.body {
        None => None,
        Some(bytes) => match core.served.answers.send(bytes, until) {
            Some(sending) => Some(Box::new(sending) as Box<dyn Source>),
            None => return,
        },
    };
    reply.answer(Answer {
        status: kept.status,
        head: kept.head.clone(),
        body,
    });
}

fn fail(reply: Responder, error: Errno) {
    reply.reply(code(error), wire::encode_answer(&[], &[]));
}

/// Handles a request to the store. With `here`, this thread may carry out a `Leaf` or an `Entry`.
fn serve_request(core: &Arc<Core>, request: Incoming, reply: Responder, here: bool) {
    let Some(serve) = core.serving().cloned() else {
        return;
    };
    let (from, kind) = (request.connection.peer().node, request.kind);
    let Some(class) = serve.class(kind) else {
        return fail(reply, Errno::PROTO);
    };
    let Some((request_head, head, inline)) = RequestHead::decode(&request.head) else {
        return fail(reply, Errno::PROTO);
    };
    let RequestHead {
        requester,
        number,
        within,
        settled,
        traced: id,
    } = request_head;
    let within = Instant::now() + Duration::from_millis(within.into());
    let deadline = request.deadline.min(within);
    let nature = Core::nature(&*serve, kind);
    let way = Way::Peer(reply);
    let begun = core
        .reply_cache
        .begin(requester, number, &settled, deadline, nature, way);
    let core2 = core.clone();
    let (message, body) = (request.head, request.body);
    let job: Box<dyn FnOnce() + Send> = match begun {
        Verdict::New => Box::new(move || {
            carry_out(&core2, &*serve, (requester, number, kind), deadline, || {
                with_body(body, &message[inline], |bytes| {
                    serve_traced(id, (from, kind), || {
                        serve.serve(from, kind, &message[head], bytes)
                    })
                })
            });
        }),
        Verdict::Again(way, kept, before) => Box::new(move || {
            if before {
                again(&*serve, from, kind, &message[head], &kept);
            }
            way.answer(&core2, &kept, deadline);
        }),
        Verdict::Joined => return,
        Verdict::Forgotten(way) => return forgotten(core, way, from, kind),
        // Without a reply, the requester sends the request again: it wasn't carried out.
        Verdict::Full(way) => return drop(way),
    };
    // The thread may wait for peers. Other threads receive their replies meanwhile.
    if here && class <= Class::Entry {
        return job();
    }
    core.workers(class).submit(job);
}

/// Handles a request of this node whose home is this node.
pub fn serve_own_request(
    core: &Arc<Core>,
    serve: &Arc<dyn Serve>,
    class: Class,
    pending: Arc<PendingRequest>,
    settled: &Settled,
) {
    let (requester, number, kind) = (core.request_server.id(), pending.number(), pending.kind);
    let nature = Core::nature(&**serve, kind);
    let deadline = pending.deadline();
    let way = Way::Own(pending.clone());
    let begun = core
        .reply_cache
        .begin(requester, number, settled, deadline, nature, way);
    let (core2, serve, me) = (core.clone(), serve.clone(), core.me);
    let job: Box<dyn FnOnce() + Send> = match begun {
        Verdict::New => Box::new(move || {
            let until = pending.deadline();
            carry_out(&core2, &*serve, (requester, number, kind), until, || {
                let origin = pending.origin().ok_or(Errno::HOSTDOWN)?;
                origin.with_bytes(|bytes| {
                    serve_traced(pending.traced, (me, kind), || {
                        serve.serve(me, kind, origin.head(), bytes)
                    })
                })
            });
        }),
        Verdict::Again(way, kept, before) => Box::new(move || {
            if let Some(origin) = pending.origin().filter(|_| before) {
                again(&*serve, me, kind, origin.head(), &kept);
            }
            way.answer(&core2, &kept, deadline);
        }),
        Verdict::Joined => return,
        Verdict::Forgotten(way) => return forgotten(core, way, me, kind),
        // The requester sends the request again.
        Verdict::Full(way) => return way.fail(core, Errno::AGAIN),
    };
    core.workers(class).submit(job);
}

/// Carries out a request that is a part of a program's request `id`, with trace events.
fn serve_traced(
    id: u64,
    (from, kind): (NodeId, u16),
    serve: impl FnOnce() -> Result<Reply, Errno>,
) -> Result<Reply, Errno> {
    traced(id, || {
        forebay_trace::event!(SERVE_ENTER, from.0, kind);
        let result = serve();
        let errno = forebay_trace::points::outcome(&result);
        forebay_trace::event!(SERVE_EXIT, from.0, kind, errno);
        result
    })
}

/// Carries out a request that was begun, stores the reply, and sends it.
fn carry_out(
    core: &Core,
    serve: &dyn Serve,
    (requester, number, kind): (u64, u64, u16),
    deadline: Instant,
    f: impl FnOnce() -> Result<Reply, Errno>,
) {
    if !core.reply_cache.is_wanted(requester, number) {
        // The requester was told that no reply came. So the request must not be carried out later.
        if let Some(way) = core.reply_cache.finish(requester, number, None, false) {
            way.fail(core, Errno::HOSTDOWN);
        }
        return;
    }
    take_unreachable();
    let done = f();
    let kept = Arc::new(carried_out(done, take_unreachable(), core.inline));
    let again = serve.repeatable(kind);
    if let Some(way) = core
        .reply_cache
        .finish(requester, number, Some(&kept), again)
    {
        // A late reply is sent, too: a requester that knows that the request is in progress may
        // still wait.
        let soon = Instant::now() + WAITS;
        way.answer(core, &kept, deadline.max(soon));
    }
}

/// Called before the reply that an earlier daemon has recorded is sent.
fn again(serve: &dyn Serve, from: NodeId, kind: u16, head: &[u8], kept: &Kept) {
    if kept.status == 0
        && let Some((answer, _)) = wire::decode_answer(&kept.head)
    {
        serve.answered_again(from, kind, head, answer);
    }
}

/// Answers a request whose outcome is unknown.
fn forgotten(core: &Core, way: Way, from: NodeId, kind: u16) {
    core.log(&format!(
        "{} repeated a request of kind {kind} whose outcome is no longer known: it gets EIO",
        core.name_of(from)
    ));
    way.fail(core, Errno::IO);
}

/// Answers which of the listed requests are still being carried out, and extends their deadlines.
fn progress(core: &Core, head: &[u8], reply: Responder) {
    let Some(query) = ProgressQuery::decode(head) else {
        return reply.reply(code(Errno::PROTO), Vec::new());
    };
    let until = Instant::now() + Duration::from_millis(query.within.into());
    let at_work = |n: &u64| u8::from(core.reply_cache.renew(query.requester, *n, until));
    reply.reply(0, query.numbers.iter().map(at_work).collect());
}

fn with_body<T>(body: Option<Body>, inline: &[u8], f: impl FnOnce(&[u8]) -> T) -> T {
    match body {
        None => f(inline),
        Some(body) => {
            let length = body.length;
            match body.into_landing::<Buffer>() {
                Some(buffer) => f(buffer.bytes(length)),
                None => f(&[]),
            }
        }
    }
}

/// Makes the reply to a request that was carried out. `unreachable`: the node that didn't answer,
/// if that made the request fail.
fn carried_out(
    done: Result<Reply, Errno>,
    unreachable: Option<NodeId>,
    most_inline: usize,
) -> Kept {
    let reply = match done {
        Ok(reply) if reply.head.len() <= MAX_HEAD && reply.body.len() <= MAX_BODY => reply,
        failed => {
            let error = failed.err().unwrap_or(Errno::PROTO);
            let node = match error {
                Errno::HOSTDOWN => unreachable,
                _ => None,
            };
            let node = node.map(|node| node.0.to_le_bytes());
            return Kept {
                status: code(error),
                head: wire::encode_answer(node.as_ref().map_or(&[], |node| &node[..]), &[]),
                body: None,
            };
        }
    };
    let inline = wire::goes_inline(reply.head.len(), reply.body.len(), most_inline);
    Kept {
        status: 0,
        head: if inline {
            wire::encode_answer(&reply.head, &reply.body)
        } else {
            wire::encode_answer(&reply.head, &[])
        },
        body: (!inline).then(|| Arc::new(reply.body)),
    }
}

/// Handles a message between daemons.
fn own(core: Arc<Core>, request: Incoming, reply: Responder) {
    let workers = core.workers(Class::Composite).clone();
    // These may wait: state kept for a previous daemon of the other node is released first.
    workers.submit(Box::new(move || {
        let connection = request.connection;
        match request.kind {
            HELLO => hello(&core, &connection, &request.head, reply),
            MAP => {
                let map = request.body.and_then(|body| {
                    let length = body.length;
                    let bytes = body.into_landing::<Vec<u8>>()?;
                    PoolMap::decode(&bytes[..length]).ok()
                });
                match map {
                    Some(map) => {
                        core.learn(map, connection.peer().node);
                        reply.reply(0, Vec::new());
                    }
                    None => reply.reply(code(Errno::PROTO), Vec::new()),
                }
            }
            GET_MAP => match core.maps.get() {
                Some(map) => reply.answer(Answer {
                    status: 0,
                    head: Vec::new(),
                    body: Some(Box::new(map.encode())),
                }),
                None => reply.reply(code(Errno::AGAIN), Vec::new()),
            },
            _ => reply.reply(code(Errno::PROTO), Vec::new()),
        }
    }));
}

fn hello(core: &Arc<Core>, connection: &Arc<dyn Connection>, head: &[u8], reply: Responder) {
    let Some(hello) = Hello::decode(head) else {
        return reply.reply(code(Errno::PROTO), Vec::new());
    };
    let node = connection.peer().node;
    // This node's requests to the other node use the connection, too.
    if let Some(link) = core.link(node) {
        let live = Live {
            connection: connection.clone(),
            hello,
            ours: false,
            since: Instant::now(),
        };
        link.offer(core, live);
    }
    core.met(node, hello.incarnation);
    core.heard_from(node);
    reply.reply(0, core.hello().encode());
}
