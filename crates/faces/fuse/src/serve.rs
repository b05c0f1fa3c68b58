//! The threads that take the kernel's requests and answer them.
//!
//! Each thread takes a request, answers it, and takes the next. There are two to four. When all are
//! blocked (none waits for a request, and none was taken for [`HELD_UP`]) another one is started,
//! up to [`MAX_WORKERS`]; it ends when enough others wait.
//!
//! Such a thread never waits for a resource that a client may hold, since the client may wait for
//! the thread's reply: it reads nothing about other processes in /proc ([`answer_others`]), and
//! sends the kernel no notices. A request that needs these, or that waits for a program's lock,
//! gets its own thread.
//!
//! Without memory, requests are answered from a reserve, or refused with ENOMEM ([`reserve`]); no
//! thread is started then.

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
use forebay_runtime::threads::{self, start};
use forebay_store::process::answer_others;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Limit on threads that take requests. Further requests wait in the kernel.
const MAX_WORKERS: usize = 256;
/// Usual number of these threads: the number of cores, within these bounds.
const USUAL: std::ops::RangeInclusive<usize> = 2..=4;
/// How long all threads may be busy, at least, before another one is started; twice as long at
/// most.
const HELD_UP: Duration = Duration::from_millis(2);
/// Limit on requests with their own threads; beyond it ENOLCK for a lock, EAGAIN for others.
const MAX_ASIDE_REQUESTS: usize = 1024;
const STACK: usize = 512 << 10;
/// Size of the largest request and of the largest reply. Bytes.
const LARGEST: usize = p::MAX_WRITE + 4096;
/// Limit on recorded interrupts whose request isn't known: it may be about to wait.
const EARLY: usize = 64;
/// Pause of an open between two checks whether a lease still conflicts.
const LEASE_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long requests may still take when the mount's process is to end.
const END: Duration = Duration::from_secs(2);

/// State that the threads of a mount share.
pub struct Server {
    pub face: Face,
    device: OwnedFd,
    threads: Mutex<Threads>,
    /// Usual number of threads that take requests.
    usual: usize,
    /// Signals that a thread has ended, or has answered after the end.
    changed: Condvar,
    /// Signals that no thread waits for a request.
    scarce: Condvar,
    /// Whether everything was closed at the end.
    ended: Mutex<Option<bool>>,
    aside: Mutex<Aside>,
}

/// Numbers of threads by activity.
#[derive(Default)]
struct Threads {
    /// Threads that take requests, and how many of them wait for one.
    workers: usize,
    idle: usize,
    /// Number of requests taken.
    taken: u64,
    /// Whether the watching thread sleeps until no thread waits for a request.
    is_unwatched: bool,
    /// Threads that are answering a request, those for a single request included.
    busy: usize,
    /// Whether answering has ended.
    is_over: bool,
}

/// Requests that wait on their own threads, by number; and interrupts that came too early.
#[derive(Default)]
struct Aside {
    cancel: HashMap<u64, Arc<AtomicBool>>,
    early: VecDeque<u64>,
}

/// Negotiates with the kernel. Returns a server that isn't running yet.
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
    // Limit on background requests, and the number from which on they count as congestion.
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
/// An errno of reading the device.
fn take(device: &OwnedFd, into: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(device, &mut *into) {
            Ok(n) => return Ok(Some(n)),
            // ENOENT: the request was interrupted before it was taken.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            Err(Errno::NODEV) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Whether such a request frees memory, room in the pool, or a lock, and takes little itself.
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
/// as it is used, and a failure of that ends the process.
#[inline(never)]
fn touch_stack() {
    std::hint::black_box(&mut [0u8; STACK]);
}

/// Main loop of one thread: until the mount is removed, or enough other threads wait.
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
    let mut threads = server.threads();
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

    // For code that uses the kernel's handles outside of an answer.
    fn while_it_runs(&self, f: impl FnOnce()) {
        let mut threads = self.threads();
        if !threads.is_over {
            threads.busy += 1;
            drop(threads);
            f();
            self.answered(&mut self.threads());
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
        // Not during an answer: attaching may have to wait for another mount.
        self.face.fs().store().process_slot()?;
        Cached::watch(self)?;
        Keeping::watch(self)?;
        for _ in 0..self.usual {
            self.one_more(&mut self.threads())?;
        }
        let server = self.clone();
        start(
            Builder::new().name("threads".into()),
            256 << 10,
            0,
            move || server.watch(),
        )?;
        // Opened now, as there might be no memory for it later.
        let _ = self.face.fs().store().open_records();
        threads::have_begun();
        ready();
        let threads = self.threads();
        drop(self.changed.wait_while(threads, |t| t.workers > 0));
        self.stop();
        Ok(())
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread that takes requests, unless the limit is reached.
    fn one_more(self: &Arc<Server>, threads: &mut Threads) -> io::Result<()> {
        if threads.workers >= MAX_WORKERS {
            return Ok(());
        }
        let server = self.clone();
        // Each page of these buffers gets memory at its first use.
        start(Builder::new(), STACK, 2 * LARGEST, move || {
            work(&server, vec![0; LARGEST], Reply::of_size(LARGEST));
        })?;
        threads.workers += 1;
        threads.idle += 1;
        Ok(())
    }

    /// Called when the calling thread has taken a request. False: answering has ended, and so must
    /// the thread.
    fn begins(self: &Arc<Server>) -> bool {
        let mut threads = self.threads();
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
        let mut threads = self.threads();
        while threads.workers > 0 {
            if threads.idle > 0 {
                threads.is_unwatched = true;
                threads = self.wait(&self.scarce, threads);
                continue;
            }
            let taken = threads.taken;
            drop(threads);
            std::thread::sleep(HELD_UP);
            threads = self.threads();
            if threads.idle == 0 && threads.taken == taken {
                // If it can't be started, the existing threads continue.
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

    /// Called when the calling thread has answered. Returns whether it takes another request.
    fn goes_on(&self) -> bool {
        let mut threads = self.threads();
        self.answered(&mut threads);
        if threads.is_over || threads.idle >= self.usual {
            self.leaves(&mut threads);
            return false;
        }
        threads.idle += 1;
        true
    }

    /// Number of threads that are answering a request.
    fn busy(&self) -> usize {
        let threads = self.threads();
        threads.workers.saturating_sub(threads.idle)
    }

    fn answered(&self, threads: &mut Threads) {
        threads.busy -= 1;
        if threads.is_over {
            self.changed.notify_all();
        }
    }

    /// Called when the calling thread takes no more requests.
    fn leaves(&self, threads: &mut Threads) {
        threads.workers -= 1;
        if threads.workers == 0 {
            self.changed.notify_all();
            self.scarce.notify_all();
        }
    }

    /// Ends answering, and closes what the kernel's handles have open. Files that can't be closed
    /// in time are left to the cleanup behind dead processes.
    pub fn stop(&self) -> bool {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        *ended.get_or_insert_with(|| self.answers_end() && self.face.end().is_ok())
    }

    /// Ends answering. Returns whether no thread is answering any longer.
    fn answers_end(&self) -> bool {
        self.threads().is_over = true;
        let until = Instant::now() + END;
        let mut threads = self.threads();
        while threads.busy > 0 {
            // Another request may have begun to wait.
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
        let ticket = self.face.keeping.begin(&head);
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
                            // The lease in its way ends within `lease-break-time`.
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
                    .stamp(ticket, (&head, args), result, reply);
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
        // ENOENT: the requester has ended, so no close will follow for what was opened for it.
        if sent == Err(Errno::NOENT) && result.is_ok() {
            self.face.unanswered(head, reply);
        }
    }

    /// Waits for a lock on another thread.
    fn wait_for(self: &Arc<Server>, head: Head, lock: Wait) {
        self.aside_for(head, Errno::NOLCK, move |_, cancel, _| lock(cancel));
    }

    /// Answers a request that may wait for other processes on its own thread; with `refusal` if
    /// there are too many of them.
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
        self.threads().busy += 1;
        let server = self.clone();
        let started = start(Builder::new(), STACK, LARGEST, move || {
            let mut reply = Reply::new();
            let begun = counted::begin(head.opcode);
            let result = answer(&server, &cancel, &mut reply);
            counted::end(head.opcode, begun, result, &reply);
            server.aside().cancel.remove(&unique);
            server.send(&head, result, &mut reply);
            server.answered(&mut server.threads());
        });
        if started.is_err() {
            self.aside().cancel.remove(&unique);
            self.answered(&mut self.threads());
            refused(Errno::NOMEM);
        }
    }

    /// Interrupts the request of this number, if it waits. All others end by themselves.
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
        // A panic ends the process: no thread sees a half-changed table.
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
