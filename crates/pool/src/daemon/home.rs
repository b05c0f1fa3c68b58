//! The serving side: what other nodes ask of this one.
//!
//! The transport's threads only note a question and pass it to a worker of its class.

use super::core::Core;
use super::memory::{Kept, Verdict};
use super::question::code;
use super::room::{Buffer, Buffers, Outgoing};
use super::wire::{self, Asking, GET_MAP, HELLO, Hello, MAP, MAX_MAP, OWN};
use crate::limits::Budget;
use forebay_net::transport::Answer;
use forebay_net::{Body, Connection, Error, Handler, Incoming, Landing, Peer, Responder, Source};
use forebay_placement::PoolMap;
use forebay_store::elsewhere::serve::{Class, Reply};
use forebay_store::elsewhere::{MAX_BODY, MAX_HEAD};
use rustix::io::Errno;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long an answer waits for room.
const WAITS: Duration = Duration::from_secs(2);

/// Serves other nodes.
pub struct Home(pub Weak<Core>);

/// What it takes of memory.
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
        if request.kind >= OWN {
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
        kind == forebay_store::elsewhere::messages::kind::CLOSE
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

/// Answers as soon as there is room, by `until`. Without an answer, the question comes again.
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

/// A question of a store.
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
        lowest,
    } = asking;
    let deadline = request.deadline;
    match core.memory.begin(asker, number, lowest, deadline, reply) {
        Verdict::New => {}
        Verdict::Joined => return,
        Verdict::Again(reply, kept) => {
            let core2 = core.clone();
            let job = move || answer(&core2, reply, &kept, deadline);
            return core.workers(class).submit(Box::new(job));
        }
        Verdict::Forgotten(reply) => return fail(reply, Errno::IO),
    }
    let core2 = core.clone();
    let (message, body) = (request.head, request.body);
    let job: Box<dyn FnOnce() + Send> = Box::new(move || {
        let core = core2;
        if !core.memory.is_wanted(asker, number) {
            // Who asked has been told that there was no answer. It must not happen later.
            if let Some(reply) = core.memory.finish(asker, number, None, false) {
                fail(reply, Errno::HOSTDOWN);
            }
            return;
        }
        let again = serve.repeatable(kind);
        let kept = with_body(body, &message[inline], |bytes| {
            let done = serve.serve(from, kind, &message[head], bytes);
            carried_out(done, core.inline)
        });
        let kept = Arc::new(kept);
        if let Some(reply) = core.memory.finish(asker, number, Some(&kept), again) {
            answer(&core, reply, &kept, deadline);
        }
    });
    // The thread may wait for other nodes: as long as it does, others are left to receive their answers.
    if here && class <= Class::Entry {
        return job();
    }
    core.workers(class).submit(job);
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
    core.met(node, hello.incarnation);
    core.heard_from(node);
    reply.reply(0, core.hello().encode());
}
