//! The threads that receive the kernel's requests and answer them.
//!
//! Each thread receives a request, answers it, and receives the next. Usually there are two to four
//! threads. When all of them are blocked (none waits for a request, and none has received one for
//! [`HELD_UP`]) another one is started, up to [`MAX_WORKERS`]. A thread ends when enough others
//! wait for requests.
//!
//! These threads never wait for a resource that a client may hold, since the client may wait for
//! the thread's reply. So these threads read nothing about other processes in /proc
//! ([`answer_others`]), and send the kernel no notices. A request that needs one of the two, or
//! that waits for a program's lock, gets a thread of its own.
//!
//! Without memory, requests are answered from a reserve, or refused with ENOMEM ([`reserve`]), and
//! no thread is started.

use crate::cached::{Cached, Serves};
use crate::counted;
use crate::face::{Answer, Face, Wait};
use crate::keeping::Keeping;
use crate::notices::Notices;
use crate::protocol::{self as p, Args, Head, Reply, opcode, refusal};
use crate::reserve;
use forebay_client::Pool;
use forebay_posix::controls::ASIDE;
use forebay_posix::{Errno, Fs};
use forebay_runtime::threads::{self, lock, start};
use forebay_store::process::answer_others;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Maximum number of threads that receive requests. Further requests wait in the kernel.
const MAX_WORKERS: usize = 256;
/// Bounds of the usual number of threads that receive requests. Within the bounds, it is the number
/// of cores.
const USUAL: std::ops::RangeInclusive<usize> = 2..=4;
/// How long all threads must be busy before another one is started. The other thread is started
/// after twice this time at most.
const HELD_UP: Duration = Duration::from_millis(2);
/// Maximum number of requests with threads of their own. Beyond it, a lock fails with ENOLCK,
/// another request with EAGAIN.
const MAX_ASIDE_REQUESTS: usize = 1024;
const STACK: usize = 512 << 10;
/// Maximum size of a request, and of a reply. Bytes.
const LARGEST: usize = p::MAX_WRITE + 4096;
/// Maximum number of interrupts recorded for requests that aren't waiting yet.
const EARLY: usize = 64;
/// Pause between two attempts of an open that conflicts with a lease.
const LEASE_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long requests may still take after the server was told to stop.
const END: Duration = Duration::from_secs(2);

/// State that the threads of a mount share.
pub struct Server {
    pub face: Face,
    device: OwnedFd,
    threads: Mutex<Threads>,
    /// Usual number of threads that receive requests.
    usual: usize,
    /// Signals that the last worker has ended, or that a request was answered once `is_over` was
    /// set.
    changed: Condvar,
    /// Signals that no thread waits for a request.
    scarce: Condvar,
    /// Whether [`Server::stop`] succeeded; None before it was called.
    ended: Mutex<Option<bool>>,
    aside: Mutex<Aside>,
}

/// Numbers of threads by what they do.
#[derive(Default)]
struct Threads {
    /// Number of threads that receive requests.
    workers: usize,
    idle: usize,
    /// Number of requests received so far.
    taken: u64,
    /// Whether the watching thread sleeps until no thread waits for a request.
    is_unwatched: bool,
    /// Number of threads that are answering a request, including those that answer only one.
    busy: usize,
    /// Whether answering has ended.
    is_over: bool,
}

/// Requests that wait on threads of their own, by number; and interrupts that arrived before their
/// requests began to wait.
#[derive(Default)]
struct Aside {
    cancel: HashMap<u64, Arc<AtomicBool>>,
    early: VecDeque<u64>,
}

/// Negotiates with the kernel, and returns a server that isn't running yet.
///
/// # Errors
/// If the kernel is too old, the device can't be read, or a thread can't be started.
pub fn greeted(device: OwnedFd, pool: Arc<Pool>) -> io::Result<Arc<Server>> {
    let minor = greet(&device)?;
    let notices = Arc::new(Notices(device.try_clone()?));
    let keeping = Keeping::new(pool.clone(), notices.clone(), minor >= p::EXPIRE_MINOR);
    Ok(Arc::new(Server {
        face: Face::new(pool, notices, keeping)?,
        device,
        threads: Mutex::default(),
        usual: std::thread::available_parallelism()
            .map_or(1, usize::from)
            .clamp(*USUAL.start(), *USUAL.end()),
        changed: Condvar::new(),
        scarce: Condvar::new(),
        ended: Mutex::default(),
        aside: Mutex::default(),
    }))
}

/// Answers INIT, the first request. Returns the kernel's minor version.
fn greet(device: &OwnedFd) -> io::Result<u32> {
    let mut request = vec![0u8; LARGEST];
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
    // Maximum number of background requests, and the number from which on they count as congestion.
    reply.u16(64).u16(48);
    reply.u32(p::MAX_WRITE as u32);
    // Granularity of times. Nanoseconds.
    reply.u32(1);
    reply.u16((p::MAX_WRITE / 4096) as u16).u16(0);
    reply.u32((both >> 32) as u32).zeros(4 + 2 + 22);
    rustix::io::write(device, reply.finish(head.unique))?;
    Ok(minor)
}

/// Reads the next request. Returns its length; None if the mount was removed.
///
/// # Errors
/// If reading the device fails.
fn take(device: &OwnedFd, into: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(device, &mut *into) {
            Ok(n) => return Ok(Some(n)),
            // ENOENT: the request was interrupted before it was read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            Err(Errno::NODEV) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Whether this kind of request frees memory, space in the pool, or a lock, and needs little
/// memory.
fn gives_back(opcode: u32) -> bool {
    matches!(
        opcode,
        opcode::FORGET
            | opcode::BATCH_FORGET
            | opcode::FLUSH
            | opcode::SETLK
            | opcode::RELEASE
            | opcode::RELEASEDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::DESTROY
    )
}

/// Makes the kernel extend the calling thread's stack to its limit. The main thread's stack grows
/// only on use; without memory for that, the process would be killed.
#[inline(never)]
fn touch_stack() {
    std::hint::black_box(&mut [0u8; STACK]);
}

/// Receives and answers requests until the mount is removed, or enough other threads wait for
/// requests.
fn work(server: &Arc<Server>, mut request: Vec<u8>, mut reply: Reply) {
    answer_others();
    while let Ok(Some(len)) = take(&server.device, &mut request) {
        if !server.begins() {
            return;
        }
        server.answer(&request[..len], &mut reply);
        if !server.goes_on() {
            return;
        }
    }
    let mut threads = lock(&server.threads);
    threads.idle -= 1;
    server.leaves(&mut threads);
}

impl AsRef<Keeping> for Server {
    fn as_ref(&self) -> &Keeping {
        &self.face.keeping
    }
}

impl Serves for Server {
    fn cached(&self) -> &Cached {
        &self.face.cached
    }

    fn fs(&self) -> &Fs {
        self.face.fs()
    }

    // Runs code that uses the kernel's handles but isn't part of an answer.
    fn while_it_runs(&self, f: impl FnOnce()) {
        let mut threads = lock(&self.threads);
        if !threads.is_over {
            threads.busy += 1;
            drop(threads);
            f();
            self.answered(&mut lock(&self.threads));
        }
    }
}

impl Server {
    /// Answers requests until the mount is removed.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn run(self: &Arc<Server>, ready: impl FnOnce()) -> io::Result<()> {
        reserve::hold()?;
        touch_stack();
        // Attaches to the pool now, and not while answering: attaching may have to wait until
        // another mount ends its sole use of the store.
        self.face.fs().store().process_slot()?;
        Cached::watch(self)?;
        Keeping::watch(self)?;
        for _ in 0..self.usual {
            self.one_more(&mut lock(&self.threads))?;
        }
        let server = self.clone();
        start(
            Builder::new().name("threads".into()),
            256 << 10,
            0,
            move || server.watch(),
        )?;
        // Opens the records now, since there might be no memory for them later.
        let _ = self.face.fs().store().open_records();
        threads::have_begun();
        ready();
        let threads = lock(&self.threads);
        drop(self.changed.wait_while(threads, |t| t.workers > 0));
        self.stop();
        Ok(())
    }

    /// Starts a thread that receives requests, unless the limit is reached.
    fn one_more(self: &Arc<Server>, threads: &mut Threads) -> io::Result<()> {
        if threads.workers >= MAX_WORKERS {
            return Ok(());
        }
        let server = self.clone();
        // The pages of these buffers use memory only after their first use.
        start(Builder::new(), STACK, 2 * LARGEST, move || {
            work(&server, vec![0; LARGEST], Reply::of_size(LARGEST));
        })?;
        threads.workers += 1;
        threads.idle += 1;
        Ok(())
    }

    /// Records that the calling thread has received a request. Returns false if answering has
    /// ended; then the thread must end, too.
    fn begins(self: &Arc<Server>) -> bool {
        let mut threads = lock(&self.threads);
        threads.idle -= 1;
        if threads.is_over {
            self.leaves(&mut threads);
            return false;
        }
        threads.busy += 1;
        threads.taken += 1;
        if threads.idle == 0 && std::mem::take(&mut threads.is_unwatched) {
            self.scarce.notify_one();
        }
        true
    }

    /// Starts another thread whenever all are blocked, until the mount is removed.
    fn watch(self: &Arc<Server>) {
        let mut threads = lock(&self.threads);
        while threads.workers > 0 {
            if threads.idle > 0 {
                threads.is_unwatched = true;
                threads = self.wait(&self.scarce, threads);
                continue;
            }
            let taken = threads.taken;
            drop(threads);
            std::thread::sleep(HELD_UP);
            threads = lock(&self.threads);
            if threads.idle == 0 && threads.taken == taken {
                // If no thread can be started, the existing ones continue.
                let _ = self.one_more(&mut threads);
            }
        }
    }

    fn wait<'a>(
        &self,
        condition: &Condvar,
        threads: MutexGuard<'a, Threads>,
    ) -> MutexGuard<'a, Threads> {
        condition
            .wait(threads)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the calling thread has answered its request. Returns whether the thread is to
    /// receive another one.
    fn goes_on(&self) -> bool {
        let mut threads = lock(&self.threads);
        self.answered(&mut threads);
        if threads.is_over || threads.idle >= self.usual {
            self.leaves(&mut threads);
            return false;
        }
        threads.idle += 1;
        true
    }

    /// Returns the number of threads that are answering a request.
    fn busy(&self) -> usize {
        let threads = lock(&self.threads);
        threads.workers.saturating_sub(threads.idle)
    }

    fn answered(&self, threads: &mut Threads) {
        threads.busy -= 1;
        if threads.is_over {
            self.changed.notify_all();
        }
    }

    /// Records that the calling thread receives no more requests.
    fn leaves(&self, threads: &mut Threads) {
        threads.workers -= 1;
        if threads.workers == 0 {
            self.changed.notify_all();
            self.scarce.notify_all();
        }
    }

    /// Ends answering, and closes the files of the kernel's handles. Returns whether both succeeded
    /// in time; otherwise the pool's cleanup behind dead processes closes the files.
    pub fn stop(&self) -> bool {
        let mut ended = lock(&self.ended);
        *ended.get_or_insert_with(|| self.answers_end() && self.face.end().is_ok())
    }

    /// Ends answering. Returns whether all answers were completed in time.
    fn answers_end(&self) -> bool {
        lock(&self.threads).is_over = true;
        let until = Instant::now() + END;
        let mut threads = lock(&self.threads);
        while threads.busy > 0 {
            // In each turn, since further requests may have begun to wait.
            for cancel in self.aside().cancel.values() {
                cancel.store(true, Release);
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return false;
            };
            let turn = left.min(Duration::from_millis(20));
            let waited = self.changed.wait_timeout(threads, turn);
            threads = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn answer(self: &Arc<Server>, request: &[u8], reply: &mut Reply) {
        let Ok((head, args)) = Args::divide(request) else {
            return;
        };
        if head.opcode == opcode::INTERRUPT {
            self.interrupt(args);
            return;
        }
        if !gives_back(head.opcode) && reserve::is_short(self.busy()) {
            return self.send(&head, Err(Errno::NOMEM), reply);
        }
        reply.clear();
        let period = self.face.keeping.begin(&head);
        let begun = counted::begin(head.opcode);
        forebay_trace::event!(FUSE_REQUEST_ENTER, head.opcode, head.node);
        let answer = self.face.answer(&head, args.clone(), reply);
        forebay_trace::event!(FUSE_REQUEST_EXIT, head.opcode);
        match answer {
            Answer::Reply(Err(ASIDE)) => {
                let request = request.to_owned();
                self.aside_for(head, Errno::AGAIN, move |server, cancel, reply| {
                    loop {
                        let (head, args) = Args::divide(&request)?;
                        match server.face.answer(&head, args, reply) {
                            Answer::Reply(Err(ASIDE)) if cancel.load(Acquire) => {
                                return Err(Errno::INTR);
                            }
                            // The conflicting lease ends within `lease-break-time`.
                            Answer::Reply(Err(ASIDE)) => std::thread::sleep(LEASE_POLL_INTERVAL),
                            Answer::Reply(result) => return result,
                            _ => return Err(Errno::IO),
                        }
                        reply.clear();
                    }
                });
            }
            Answer::Reply(result) => {
                let result = self
                    .face
                    .keeping
                    .stamp(period, (&head, args), result, reply);
                counted::end(head.opcode, begun, result, reply);
                self.send(&head, result, reply);
            }
            Answer::None => {}
            Answer::Wait(lock) => self.wait_for(head, lock),
        }
    }

    fn send(&self, head: &Head, result: Result<(), Errno>, reply: &mut Reply) {
        let sent = match result {
            Ok(()) => rustix::io::write(&self.device, reply.finish(head.unique)),
            Err(e) => rustix::io::write(&self.device, &refusal(e, head.unique)),
        };
        // ENOENT: the requesting process has ended, so no close will follow for what the request
        // opened.
        if sent == Err(Errno::NOENT) && result.is_ok() {
            self.face.unanswered(head, reply);
        }
    }

    /// Starts a thread that waits for a lock.
    fn wait_for(self: &Arc<Server>, head: Head, lock: Wait) {
        self.aside_for(head, Errno::NOLCK, move |_, cancel, _| lock(cancel));
    }

    /// Answers a request that may wait for other processes on a thread of its own. If too many
    /// requests have such threads, replies with the error `refusal`.
    fn aside_for(
        self: &Arc<Server>,
        head: Head,
        refusal: Errno,
        answer: impl FnOnce(&Server, &AtomicBool, &mut Reply) -> Result<(), Errno> + Send + 'static,
    ) {
        let unique = head.unique;
        let cancel = Arc::new(AtomicBool::new(false));
        let refuse = {
            let mut aside = self.aside();
            let early = aside.early.iter().position(|&u| u == unique);
            if let Some(at) = early {
                aside.early.remove(at);
                Some(Errno::INTR)
            } else if aside.cancel.len() >= MAX_ASIDE_REQUESTS {
                Some(refusal)
            } else {
                aside.cancel.insert(unique, cancel.clone());
                None
            }
        };
        let refused = |e| self.send(&head, Err(e), &mut Reply::new());
        if let Some(e) = refuse {
            return refused(e);
        }
        lock(&self.threads).busy += 1;
        let server = self.clone();
        let started = start(Builder::new(), STACK, LARGEST, move || {
            let mut reply = Reply::new();
            let begun = counted::begin(head.opcode);
            let result = answer(&server, &cancel, &mut reply);
            counted::end(head.opcode, begun, result, &reply);
            server.aside().cancel.remove(&unique);
            server.send(&head, result, &mut reply);
            server.answered(&mut lock(&server.threads));
        });
        if started.is_err() {
            self.aside().cancel.remove(&unique);
            self.answered(&mut lock(&self.threads));
            refused(Errno::NOMEM);
        }
    }

    /// Interrupts the request of this number, if it waits. Requests that don't wait end soon
    /// anyway.
    fn interrupt(&self, mut args: Args<'_>) {
        let Ok(unique) = args.u64() else { return };
        let mut aside = self.aside();
        match aside.cancel.get(&unique) {
            Some(cancel) => cancel.store(true, Release),
            None => {
                if aside.early.len() == EARLY {
                    aside.early.pop_front();
                }
                aside.early.push_back(unique);
            }
        }
    }

    fn aside(&self) -> MutexGuard<'_, Aside> {
        // A panic ends the process, so no thread can see a half-changed table.
        lock(&self.aside)
    }
}
