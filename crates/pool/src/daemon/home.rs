//! The serving side: requests of other nodes to this one.
//!
//! The transport's threads only record a request and pass it to a worker of its class.

use super::Serve;
use super::core::{Core, lock};
use super::link::Live;
use super::question::{Got, Question, code};
use super::reply_cache::{Kept, Settled, Verdict};
use super::room::{Buffer, Buffers, Outgoing};
use super::wire::{self, Asking, AtWork, GET_MAP, HELLO, Hello, MAP, MAX_MAP, OWN, PROGRESS};
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

/// How long an answer waits for room.
const WAITS: Duration = Duration::from_secs(2);

/// Serves other nodes.
pub struct Home(pub Weak<Core>);

/// Memory that it takes. Bytes.
pub struct Served {
    buffers: Arc<Buffers>,
    answers: Outgoing,
}

impl Served {
    /// Within this budget.
    pub fn new(budget: &Budget) -> Served {
        Served {
            buffers: Arc::new(Buffers::new(budget.questions, budget.kept)),
            answers: Outgoing::new(budget.answers),
        }
    }
}

impl Handler for Home {
    fn serve(&self, request: Incoming, reply: Responder) {
        // Not answering says that it wasn't carried out: it comes again.
        let Some(core) = self.0.upgrade() else { return };
        if core.serving().is_none() {
            return;
        }
        if request.kind == PROGRESS {
            // At once: all workers may be at long work.
            progress(&core, &request.head, reply);
        } else if request.kind >= OWN {
            own(core, request, reply);
        } else {
            question(&core, request, reply, false);
        }
    }

    fn serve_here(&self, request: Incoming, reply: Responder) {
        let Some(core) = self.0.upgrade() else { return };
        if core.serving().is_some() && request.kind < OWN {
            return question(&core, request, reply, true);
        }
        self.serve(request, reply);
    }

    fn is_brief(&self, kind: u16) -> bool {
        kind == forebay_cluster::peers::messages::kind::CLOSE
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

/// The way back of a request.
pub enum Way {
    /// Another node asks.
    Peer(Responder),
    /// A process of this node, or the daemon itself.
    Own(Arc<Question>),
}

impl Way {
    fn fail(self, core: &Core, error: Errno) {
        match self {
            Way::Peer(reply) => fail(reply, error),
            Way::Own(question) => {
                lock(&core.own).remove(&question.number());
                question.fail(error);
            }
        }
    }

    fn answer(self, core: &Core, kept: &Kept, until: Instant) {
        let question = match self {
            Way::Peer(reply) => return answer(core, reply, kept, until),
            Way::Own(question) => question,
        };
        lock(&core.own).remove(&question.number());
        let Some((head, inline)) = wire::decode_answer(&kept.head) else {
            return question.fail(Errno::PROTO);
        };
        let bytes = kept.body.as_deref().map_or(inline, |body| body);
        question.answer(kept.status, head, Got::Inline(bytes));
    }
}

/// Answers as soon as there is room, by `until`. Without an answer, the request comes again.
fn answer(core: &Core, reply: Responder, kept: &Kept, until: Instant) {
    // Those who take no answers don't hold up the others for long.
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

/// A request of a store.
/// With `here`, this thread may carry it out if it needs nobody else.
fn question(core: &Arc<Core>, request: Incoming, reply: Responder, here: bool) {
    let Some(serve) = core.serving().cloned() else {
        return;
    };
    let (from, kind) = (request.connection.peer().node, request.kind);
    let Some(class) = serve.class(kind) else {
        return fail(reply, Errno::PROTO);
    };
    let Some((asking, head, inline)) = Asking::decode(&request.head) else {
        return fail(reply, Errno::PROTO);
    };
    let Asking {
        asker,
        number,
        within,
        settled,
    } = asking;
    let within = Instant::now() + Duration::from_millis(within.into());
    let deadline = request.deadline.min(within);
    let nature = Core::nature(&*serve, kind);
    let way = Way::Peer(reply);
    let begun = core
        .memory
        .begin(asker, number, &settled, deadline, nature, way);
    let core2 = core.clone();
    let (message, body) = (request.head, request.body);
    let job: Box<dyn FnOnce() + Send> = match begun {
        Verdict::New => Box::new(move || {
            carry_out(&core2, &*serve, (asker, number, kind), deadline, || {
                with_body(body, &message[inline], |bytes| {
                    serve.serve(from, kind, &message[head], bytes)
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
        // Not answering says that it wasn't carried out: it comes again.
        Verdict::Full(way) => return drop(way),
    };
    // The thread may wait for other nodes: as long as it does, others are left to receive their
    // answers.
    if here && class <= Class::Entry {
        return job();
    }
    core.workers(class).submit(job);
}

/// A request of this node, of which this node is the home.
pub fn own_question(
    core: &Arc<Core>,
    serve: &Arc<dyn Serve>,
    class: Class,
    question: Arc<Question>,
    settled: &Settled,
) {
    let (asker, number, kind) = (core.desk.id(), question.number(), question.kind);
    let nature = Core::nature(&**serve, kind);
    let deadline = question.deadline();
    let way = Way::Own(question.clone());
    let begun = core
        .memory
        .begin(asker, number, settled, deadline, nature, way);
    let (core2, serve, me) = (core.clone(), serve.clone(), core.me);
    let job: Box<dyn FnOnce() + Send> = match begun {
        Verdict::New => Box::new(move || {
            let until = question.deadline();
            carry_out(&core2, &*serve, (asker, number, kind), until, || {
                let origin = question.origin().ok_or(Errno::HOSTDOWN)?;
                origin.with_bytes(|bytes| serve.serve(me, kind, origin.head(), bytes))
            });
        }),
        Verdict::Again(way, kept, before) => Box::new(move || {
            if let Some(origin) = question.origin().filter(|_| before) {
                again(&*serve, me, kind, origin.head(), &kept);
            }
            way.answer(&core2, &kept, deadline);
        }),
        Verdict::Joined => return,
        Verdict::Forgotten(way) => return forgotten(core, way, me, kind),
        // The asker asks again.
        Verdict::Full(way) => return way.fail(core, Errno::AGAIN),
    };
    core.workers(class).submit(job);
}

/// Carries a request out that was begun, remembers the answer, and gives it.
fn carry_out(
    core: &Core,
    serve: &dyn Serve,
    (asker, number, kind): (u64, u64, u16),
    deadline: Instant,
    f: impl FnOnce() -> Result<Reply, Errno>,
) {
    if !core.memory.is_wanted(asker, number) {
        // The asker has been told that there was no answer. It must not happen later.
        if let Some(way) = core.memory.finish(asker, number, None, false) {
            way.fail(core, Errno::HOSTDOWN);
        }
        return;
    }
    let kept = Arc::new(carried_out(f(), core.inline));
    let again = serve.repeatable(kind);
    if let Some(way) = core.memory.finish(asker, number, Some(&kept), again) {
        // What took long is answered all the same: its asker may have been told that it was at
        // work.
        let soon = Instant::now() + WAITS;
        way.answer(core, &kept, deadline.max(soon));
    }
}

/// The answer of an earlier daemon is given again.
fn again(serve: &dyn Serve, from: NodeId, kind: u16, head: &[u8], kept: &Kept) {
    if kept.status == 0
        && let Some((answer, _)) = wire::decode_answer(&kept.head)
    {
        serve.answered_again(from, kind, head, answer);
    }
}

/// Nobody knows what the answer was, or whether there was one.
fn forgotten(core: &Core, way: Way, from: NodeId, kind: u16) {
    core.say(&format!(
        "{} asks again for something (kind {kind}) whose outcome isn't known any more: it gets EIO",
        core.name_of(from)
    ));
    way.fail(core, Errno::IO);
}

/// Says which requests are still being carried out, and goes on waiting for those to be wanted.
fn progress(core: &Core, head: &[u8], reply: Responder) {
    let Some(asked) = AtWork::decode(head) else {
        return reply.reply(code(Errno::PROTO), Vec::new());
    };
    let until = Instant::now() + Duration::from_millis(asked.within.into());
    let at_work = |n: &u64| u8::from(core.memory.renew(asked.asker, *n, until));
    reply.reply(0, asked.numbers.iter().map(at_work).collect());
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

fn carried_out(done: Result<Reply, Errno>, most_inline: usize) -> Kept {
    let reply = match done {
        Ok(reply) if reply.head.len() <= MAX_HEAD && reply.body.len() <= MAX_BODY => reply,
        failed => {
            return Kept {
                status: code(failed.err().unwrap_or(Errno::PROTO)),
                head: wire::encode_answer(&[], &[]),
                body: None,
            };
        }
    };
    let inline = wire::goes_inline(reply.head.len(), reply.body.len(), most_inline);
    Kept {
        status: 0,
        head: match inline {
            true => wire::encode_answer(&reply.head, &reply.body),
            false => wire::encode_answer(&reply.head, &[]),
        },
        body: (!inline).then(|| Arc::new(reply.body)),
    }
}

/// A message between daemons.
fn own(core: Arc<Core>, request: Incoming, reply: Responder) {
    let workers = core.workers(Class::Composite).clone();
    // They may wait: what is kept for a daemon that has ended is given up first.
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
    // Our own requests for that node go by it, too.
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
