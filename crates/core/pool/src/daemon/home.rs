//! The home's side: requests of other nodes to this node, and of this node to itself.
//!
//! A thread of the transport registers a request and passes it to a worker of the request's class.
//! The thread itself may carry out requests of the classes `Leaf` and `Entry`.

use super::Serve;
use super::link::{Links, Live, traced};
use super::local_node::LocalNode;
use super::maps;
use super::pending::{Got, PendingRequest, code};
use super::reply_cache::{Kept, Nature, ReplyCache, Settled, Verdict};
use super::room::{Buffer, Buffers, Outgoing};
use super::wire::{
    self, GET_MAP, HELLO, Hello, MAP, MAX_MAP, OWN, PROGRESS, ProgressQuery, RequestHead,
};
use forebay_client::requests::{Left, Replies};
use forebay_cluster::peers::{MAX_BODY, MAX_HEAD};
use forebay_cluster::serve::{Class, Reply};
use forebay_net::transport::Answer;
use forebay_net::{
    Body, Connection, Error, Handler, Incoming, Landing, NodeId, Peer, Responder, Source,
};
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How long a reply waits for room in the buffers.
const WAITS: Duration = Duration::from_secs(2);

/// The requests that this node carries out, and the memory for their bytes and replies.
pub struct Home {
    links: Arc<Links>,
    reply_cache: ReplyCache<Way>,
    /// Numbers of this node's unanswered requests to itself.
    own: Mutex<BTreeSet<u64>>,
    buffers: Arc<Buffers>,
    answers: Outgoing,
}

/// The handler of other nodes' requests.
pub struct HomeHandler(pub Weak<Home>);

thread_local! {
    /// The node that didn't answer this thread's last request that failed with EHOSTDOWN.
    static UNREACHABLE: Cell<Option<NodeId>> = const { Cell::new(None) };
}

/// Notes that a request that this thread has sent has failed with EHOSTDOWN because of `node`. If
/// the request that this thread carries out fails for that reason, its reply names the node.
pub(super) fn set_unreachable(node: NodeId) {
    UNREACHABLE.set(Some(node));
}

impl Handler for HomeHandler {
    fn serve(&self, request: Incoming, reply: Responder) {
        // Without a reply, the requester sends the request again: it wasn't carried out.
        let Some(home) = self.0.upgrade() else { return };
        if home.local().serving().is_none() {
            return;
        }
        if request.kind == PROGRESS {
            // Answered on this thread: all workers may be busy with long requests.
            home.links.heard_from(request.connection.peer().node);
            home.progress(&request.head, reply);
        } else if request.kind >= OWN {
            home.serve_daemon(request, reply);
        } else {
            home.serve_request(request, reply, false);
        }
    }

    fn serve_here(&self, request: Incoming, reply: Responder) {
        let Some(home) = self.0.upgrade() else { return };
        if home.local().serving().is_some() && request.kind < OWN {
            return home.serve_request(request, reply, true);
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
        let home = self.0.upgrade()?;
        Some(Box::new(home.buffers.get(length)?))
    }

    fn ended(&self, peer: Peer, _why: &Error) {
        if let Some(link) = self.0.upgrade().and_then(|home| home.links.get(peer.node)) {
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
    fn fail(self, home: &Home, error: Errno) {
        match self {
            Way::Peer(reply) => fail(reply, error),
            Way::Own(pending) => {
                lock(&home.own).remove(&pending.number());
                pending.fail(error);
            }
        }
    }

    fn answer(self, home: &Home, kept: &Kept, until: Instant) {
        let pending = match self {
            Way::Peer(reply) => return answer(home, reply, kept, until),
            Way::Own(pending) => pending,
        };
        lock(&home.own).remove(&pending.number());
        let Some((head, inline)) = wire::decode_answer(&kept.head) else {
            return pending.fail(Errno::PROTO);
        };
        let bytes = kept.body.as_deref().map_or(inline, |body| body);
        pending.answer(kept.status, head, Got::Inline(bytes));
    }
}

/// Sends a reply as soon as there is room, at the latest at `until`. If there is no room by then,
/// sends nothing, and the requester sends the request again.
fn answer(home: &Home, reply: Responder, kept: &Kept, until: Instant) {
    // A peer that doesn't receive its replies must not delay replies to other peers for long.
    let until = until.min(Instant::now() + WAITS);
    let body = match &kept.body {
        None => None,
        Some(bytes) => match home.answers.send(bytes, until) {
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

impl Home {
    /// Makes the home's side of this node. `left`: the requests that earlier daemons have left in
    /// `records`.
    pub fn new(links: Arc<Links>, records: Replies, left: Vec<Left>) -> Home {
        let budget = &links.local.budget;
        Home {
            reply_cache: ReplyCache::new(budget.remembered, records, left),
            own: Mutex::default(),
            buffers: Arc::new(Buffers::new(budget.requests, budget.kept)),
            answers: Outgoing::new(budget.replies),
            links,
        }
    }

    fn local(&self) -> &LocalNode {
        &self.links.local
    }

    /// Registers the number of a request of this node to itself that an earlier daemon left.
    pub fn expect(&self, number: u64) {
        lock(&self.own).insert(number);
    }

    /// Handles a request to the store. With `here`, this thread may carry out a request of class
    /// `Leaf` or `Entry`.
    fn serve_request(self: &Arc<Self>, request: Incoming, reply: Responder, here: bool) {
        let Some(serve) = self.local().serving().cloned() else {
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
        let nature = nature(&*serve, kind);
        let way = Way::Peer(reply);
        let begun = self
            .reply_cache
            .begin(requester, number, &settled, deadline, nature, way);
        let home = self.clone();
        let (message, body) = (request.head, request.body);
        let job: Box<dyn FnOnce() + Send> = match begun {
            Verdict::New => Box::new(move || {
                let again = nature.repeatable;
                home.carry_out(requester, number, again, deadline, || {
                    with_body(body, &message[inline], |bytes| {
                        serve_traced(id, from, kind, || {
                            serve.serve(from, kind, &message[head], bytes)
                        })
                    })
                });
            }),
            Verdict::Again(way, kept, before) => Box::new(move || {
                if before {
                    again(&*serve, from, kind, &message[head], &kept);
                }
                way.answer(&home, &kept, deadline);
            }),
            Verdict::Joined => return,
            Verdict::Forgotten(way) => return self.forgotten(way, from, kind),
            // Without a reply, the requester sends the request again: it wasn't carried out.
            Verdict::Full(way) => return drop(way),
        };
        // The request may make this thread wait for peers. Other threads receive the peers'
        // replies.
        if here && class <= Class::Entry {
            return job();
        }
        self.local().workers(class).submit(job);
    }

    /// Handles a request that this node sends to itself.
    pub fn serve_own_request(self: &Arc<Self>, pending: Arc<PendingRequest>) {
        let local = self.local();
        let Some(serve) = local.serving().cloned() else {
            return pending.fail(Errno::HOSTDOWN);
        };
        let Some(class) = serve.class(pending.kind) else {
            return pending.fail(Errno::PROTO);
        };
        let settled = self.number_own(&pending);
        let (requester, number, kind) = (local.request_server.id(), pending.number(), pending.kind);
        let nature = nature(&*serve, kind);
        let deadline = pending.deadline();
        let way = Way::Own(pending.clone());
        let begun = self
            .reply_cache
            .begin(requester, number, &settled, deadline, nature, way);
        let (home, me) = (self.clone(), local.me);
        let job: Box<dyn FnOnce() + Send> = match begun {
            Verdict::New => Box::new(move || {
                let (again, until) = (nature.repeatable, pending.deadline());
                home.carry_out(requester, number, again, until, || {
                    let origin = pending.origin().ok_or(Errno::HOSTDOWN)?;
                    origin.with_bytes(|bytes| {
                        serve_traced(pending.traced, me, kind, || {
                            serve.serve(me, kind, origin.head(), bytes)
                        })
                    })
                });
            }),
            Verdict::Again(way, kept, before) => Box::new(move || {
                if let Some(origin) = pending.origin().filter(|_| before) {
                    again(&*serve, me, kind, origin.head(), &kept);
                }
                way.answer(&home, &kept, deadline);
            }),
            Verdict::Joined => return,
            Verdict::Forgotten(way) => return self.forgotten(way, me, kind),
            // The requester sends the request again.
            Verdict::Full(way) => return way.fail(self, Errno::AGAIN),
        };
        local.workers(class).submit(job);
    }

    /// Registers a request of this node to itself, and returns which of these requests are settled.
    /// The request needs a number, since an earlier daemon may have begun it.
    fn number_own(&self, pending: &PendingRequest) -> Settled {
        let mut own = lock(&self.own);
        if pending.number() == 0 {
            pending.set_number(self.local().request_server.next_number());
        }
        own.insert(pending.number());
        Settled {
            lowest: own.first().copied().unwrap_or(0),
            upto: own.last().map_or(0, |last| last + 1),
            open: own.iter().copied().collect(),
        }
    }

    /// Carries out a request that was begun, stores the reply, and sends it. `again`: the request
    /// may be carried out twice.
    fn carry_out(
        &self,
        requester: u64,
        number: u64,
        again: bool,
        deadline: Instant,
        f: impl FnOnce() -> Result<Reply, Errno>,
    ) {
        if !self.reply_cache.is_wanted(requester, number) {
            // The requester has given up, and its program got an error. So the request must not be
            // carried out now.
            if let Some(way) = self.reply_cache.finish(requester, number, None, false) {
                way.fail(self, Errno::HOSTDOWN);
            }
            return;
        }
        UNREACHABLE.take();
        let done = f();
        let kept = Arc::new(carried_out(done, UNREACHABLE.take(), self.local().inline));
        if let Some(way) = self
            .reply_cache
            .finish(requester, number, Some(&kept), again)
        {
            // A late reply is sent, too: a requester that knows that the request is in progress may
            // still wait.
            let soon = Instant::now() + WAITS;
            way.answer(self, &kept, deadline.max(soon));
        }
    }

    /// Answers a request whose outcome is unknown with EIO, and logs that.
    fn forgotten(&self, way: Way, from: NodeId, kind: u16) {
        let local = self.local();
        local.log(&format!(
            "{} repeated a request of kind {kind} whose outcome is no longer known: it gets EIO",
            local.name_of(from)
        ));
        way.fail(self, Errno::IO);
    }

    /// Answers which of the listed requests are still being carried out, and extends their
    /// deadlines.
    fn progress(&self, head: &[u8], reply: Responder) {
        let Some(query) = ProgressQuery::decode(head) else {
            return reply.reply(code(Errno::PROTO), Vec::new());
        };
        let until = Instant::now() + Duration::from_millis(query.within.into());
        let at_work = |n: &u64| u8::from(self.reply_cache.renew(query.requester, *n, until));
        reply.reply(0, query.numbers.iter().map(at_work).collect());
    }

    /// Handles a message between daemons.
    fn serve_daemon(self: Arc<Self>, request: Incoming, reply: Responder) {
        let workers = self.local().workers(Class::Composite).clone();
        // These messages may have to wait: state kept for the other node's previous daemon is
        // released first.
        workers.submit(Box::new(move || {
            let connection = request.connection;
            match request.kind {
                HELLO => self.hello(&connection, &request.head, reply),
                MAP => match request.body.and_then(maps::received) {
                    Some(map) => {
                        self.links.learn(map, connection.peer().node);
                        reply.reply(0, Vec::new());
                    }
                    None => reply.reply(code(Errno::PROTO), Vec::new()),
                },
                GET_MAP => match self.local().maps.get() {
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

    fn hello(&self, connection: &Arc<dyn Connection>, head: &[u8], reply: Responder) {
        let Some(hello) = Hello::decode(head) else {
            return reply.reply(code(Errno::PROTO), Vec::new());
        };
        let node = connection.peer().node;
        // This node's requests to the other node use the connection, too.
        if let Some(link) = self.links.get(node) {
            let live = Live {
                connection: connection.clone(),
                hello,
                ours: false,
                since: Instant::now(),
            };
            link.offer(self.local(), live);
        }
        self.local().met(node, hello.incarnation);
        self.links.heard_from(node);
        reply.reply(0, self.local().hello().encode());
    }
}

/// Returns how a request of this kind may be repeated.
fn nature(serve: &dyn Serve, kind: u16) -> Nature {
    Nature {
        repeatable: serve.repeatable(kind),
        recorded: serve.recorded(kind),
    }
}

/// Carries out a request that is a part of a program's request `id`, with trace events.
fn serve_traced(
    id: u64,
    from: NodeId,
    kind: u16,
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

/// Tells the store that a successful reply which an earlier daemon recorded is about to be sent.
fn again(serve: &dyn Serve, from: NodeId, kind: u16, head: &[u8], kept: &Kept) {
    if kept.status == 0
        && let Some((answer, _)) = wire::decode_answer(&kept.head)
    {
        serve.answered_again(from, kind, head, answer);
    }
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
