//! The threads that take the kernel's requests and answer them.
//!
//! Each takes a request, answers it, and takes the next: how many there are says [`crate::crew`], on
//! which core [`crate::follow`]. A request to wait for a lock gets a thread of its own, so
//! that the request to release it always finds somebody.

use crate::crew::Crew;
use crate::device;
use crate::face::{Answer, Face, Wait};
use crate::follow::Follow;
use crate::notices::Notices;
use crate::protocol::{self as p, Args, Head, Reply, opcode, refusal};
use crate::waiting::{Waiter, take};
use forebay_client::Pool;
use forebay_posix::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard};

/// Requests for locks that wait, at most; then ENOLCK.
const MOST_WAITING: usize = 1024;
const STACK: usize = 512 << 10;
/// Interrupts whose request hasn't been found: it may be about to begin to wait.
const EARLY: usize = 64;

/// What the threads of a mount share.
pub struct Server {
    pub face: Face,
    device: OwnedFd,
    crew: Crew,
    follow: Follow,
    waits: Mutex<Waits>,
}

/// Requests that wait for locks, by their number; and interrupts that came too early.
#[derive(Default)]
struct Waits {
    cancel: HashMap<u64, Arc<AtomicBool>>,
    early: std::collections::VecDeque<u64>,
}

/// Greets the kernel, then answers until the mount is gone.
pub fn run(device: OwnedFd, pool: Arc<Pool>, ready: impl FnOnce()) -> io::Result<()> {
    greet(&device)?;
    let notices = Notices(device::another(&device)?);
    let server = Arc::new(Server {
        crew: Crew::new(least(&pool)),
        face: Face::new(pool, notices)?,
        device,
        follow: Follow::new(),
        waits: Mutex::default(),
    });
    server.face.cached.watch(&server)?;
    ready();
    server.one_more()?;
    let watched = server.clone();
    std::thread::Builder::new()
        .name("crew".into())
        .stack_size(256 << 10)
        .spawn(move || watched.crew.watch(&|| watched.start()))?;
    server.crew.wait_for_the_end();
    server.face.end();
    Ok(())
}

/// How many threads wait for requests, at least: two where one may be held up by another node.
fn least(pool: &Pool) -> usize {
    match pool.config().member {
        Some(_) => 2,
        None => 1,
    }
}

/// INIT: the first request.
fn greet(device: &OwnedFd) -> io::Result<()> {
    let mut request = vec![0u8; p::MAX_WRITE + 4096];
    let n = take(device, &mut request)?
        .ok_or_else(|| io::Error::other("the mount was taken away at once"))?;
    let (head, mut a) = Args::divide(&request[..n])?;
    if head.opcode != opcode::INIT {
        return Err(io::Error::other("the kernel didn't begin with INIT"));
    }
    let (major, minor) = (a.u32()?, a.u32()?);
    if major != p::MAJOR || minor < p::OLDEST_MINOR {
        rustix::io::write(device, &refusal(Errno::PROTO, head.unique))?;
        return Err(io::Error::other(format!(
            "the kernel speaks FUSE {major}.{minor}, {}.{} or later is needed (Linux 5.4)",
            p::MAJOR,
            p::OLDEST_MINOR
        )));
    }
    let (max_readahead, low) = (a.u32()?, a.u32()?);
    let mut can = u64::from(low);
    if can & p::init::INIT_EXT != 0 {
        can |= u64::from(a.u32()?) << 32;
    }
    let both = can & p::init::WANTED;
    let mut reply = Reply::new();
    reply.u32(p::MAJOR).u32(p::MINOR.min(minor));
    reply.u32(max_readahead).u32(both as u32);
    // Requests in the background, and from how many on it counts as congested.
    reply.u16(64).u16(48);
    reply.u32(p::MAX_WRITE as u32);
    // Times are kept in nanoseconds.
    reply.u32(1);
    reply.u16((p::MAX_WRITE / 4096) as u16).u16(0);
    reply.u32((both >> 32) as u32).zeros(4 + 2 + 22);
    rustix::io::write(device, reply.finish(head.unique))?;
    Ok(())
}

/// One thread: until the mount is gone, or it isn't needed.
fn work(server: &Arc<Server>, device: OwnedFd) {
    let mut request = vec![0u8; p::MAX_WRITE + 4096];
    let mut reply = Reply::new();
    let mut bound = server.follow.begin();
    let mut waiter = Waiter::new(device);
    loop {
        // On the core of who is followed, that one couldn't run.
        let awake = server.crew.may_be_awake() && server.follow.is_nobody();
        let taken = waiter.next(&mut request, awake);
        let was_there = matches!(&taken, Ok(Some(t)) if t.was_there);
        let is_last = server.crew.takes(was_there);
        let Ok(Some(taken)) = taken else {
            server.crew.end();
            return;
        };
        if let Ok((head, args)) = Args::divide(&request[..taken.len]) {
            if is_last && server.face.may_take_long(&head) {
                let _ = server.one_more();
            }
            server.follow.asked(head.pid);
            server.answer(&head, args, &mut reply, &taken.device);
        }
        server.follow.go(&mut bound);
        if !server.crew.goes_on() {
            return;
        }
    }
}

impl Server {
    /// While the kernel is told of its pages it may ask for some: that takes one more thread.
    pub fn tells_of_pages(self: &Arc<Server>, tells: bool) {
        let least = match tells {
            true => 2,
            false => least(self.face.pool()),
        };
        let _ = self.crew.at_least(least, &|| self.start());
    }

    fn one_more(self: &Arc<Server>) -> io::Result<()> {
        self.crew.one_more(&|| self.start())
    }

    /// A thread that takes requests.
    fn start(self: &Arc<Server>) -> io::Result<()> {
        let device = device::another(&self.device)?;
        let server = self.clone();
        std::thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || {
                work(&server, device);
                server.crew.leave();
            })
            .map(drop)
    }

    fn answer(
        self: &Arc<Server>,
        head: &Head,
        args: Args<'_>,
        reply: &mut Reply,
        device: &Arc<OwnedFd>,
    ) {
        if head.opcode == opcode::INTERRUPT {
            self.interrupt(args);
            return;
        }
        reply.clear();
        let sent = match self.face.answer(head, args, reply) {
            Answer::Reply(Ok(())) => rustix::io::write(device, reply.finish(head.unique)),
            Answer::Reply(Err(e)) => rustix::io::write(device, &refusal(e, head.unique)),
            Answer::None => return,
            Answer::Wait(lock) => {
                self.wait(head.unique, lock, device.clone());
                return;
            }
        };
        // ENOENT: who asked is gone. What was opened for it nobody closes.
        if sent == Err(Errno::NOENT) {
            self.face.unanswered(head, reply);
        }
    }

    /// Waits for a lock on a thread of its own.
    fn wait(self: &Arc<Server>, unique: u64, lock: Wait, device: Arc<OwnedFd>) {
        let cancel = Arc::new(AtomicBool::new(false));
        let refuse = {
            let mut waits = self.lock_waits();
            let early = waits.early.iter().position(|&u| u == unique);
            if let Some(at) = early {
                waits.early.remove(at);
                Some(Errno::INTR)
            } else if waits.cancel.len() >= MOST_WAITING {
                Some(Errno::NOLCK)
            } else {
                waits.cancel.insert(unique, cancel.clone());
                None
            }
        };
        let say = move |device: &OwnedFd, result: Result<(), Errno>| {
            let answer = match result {
                Ok(()) => p::head(p::REPLY_HEAD as u32, 0, unique),
                Err(e) => refusal(e, unique),
            };
            let _ = rustix::io::write(device, &answer);
        };
        if let Some(e) = refuse {
            return say(&device, Err(e));
        }
        let (server, there) = (self.clone(), device.clone());
        let started = std::thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || {
                server.follow.begin();
                let result = lock(&cancel);
                server.lock_waits().cancel.remove(&unique);
                say(&there, result);
            });
        if started.is_err() {
            self.lock_waits().cancel.remove(&unique);
            say(&device, Err(Errno::NOLCK));
        }
    }

    /// Who waits with this number shall stop. All other requests end by themselves.
    fn interrupt(&self, mut args: Args<'_>) {
        let Ok(unique) = args.u64() else { return };
        let mut waits = self.lock_waits();
        match waits.cancel.get(&unique) {
            Some(cancel) => cancel.store(true, Release),
            None => {
                if waits.early.len() == EARLY {
                    waits.early.pop_front();
                }
                waits.early.push_back(unique);
            }
        }
    }

    fn lock_waits(&self) -> MutexGuard<'_, Waits> {
        // A panic ends the process: nobody leaves it half changed.
        self.waits.lock().unwrap_or_else(|e| e.into_inner())
    }
}
