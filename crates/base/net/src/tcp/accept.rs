//! The thread that accepts connections and carries out their handshakes.
//!
//! Only this thread handles unauthenticated peers. So such peers can't make the I/O threads wait,
//! and their memory and descriptors are bounded ([`super::half_open`]). A caller that doesn't prove
//! the key gets no answer.

use super::half_open::{Brought, Table, Welcomed};
use super::session::{Proved, Session};
use super::{Core, local};
use crate::envelope::VERSION;
use crate::handshake::{CONFIRM, Called, HELLO, Lane, Status, Welcome};
use crate::key::random;
use crate::transport::Peer;
use crate::{Error, lock};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, acceptfrom_with, bind, listen, send,
    socket_with, sockopt,
};
use rustix::process::{Resource, getrlimit};
use rustix::time::Timespec;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum number of connections that the kernel queues.
const BACKLOG: i32 = 4096;
/// Maximum number of connections accepted at once, before handshakes continue.
const MAX_ACCEPTS_PER_ROUND: usize = 32;
/// Maximum number of events taken from epoll at once.
const EVENTS: usize = 64;
/// Pause when the process has no free descriptor.
const NO_DESCRIPTORS: Duration = Duration::from_millis(50);

/// Maximum number of connections that haven't proved the key while descriptors are short. The other
/// descriptors are left to nodes.
const WHERE_SHORT: usize = 4;

const WAKE: u64 = 0;

pub(super) struct Acceptor {
    core: Arc<Core>,
    epoll: OwnedFd,
    wake: OwnedFd,
    /// Listening sockets; their tokens are 1, 2, ...
    listeners: Vec<(TcpListener, SocketAddr)>,
    table: Mutex<Table>,
    /// Descriptors are short if a new one has this number or a higher one.
    short: i32,
}

impl Acceptor {
    pub fn new(core: Arc<Core>, addresses: &[SocketAddr]) -> Result<Acceptor, Error> {
        let listeners = (addresses.iter().copied())
            .map(listen_on)
            .collect::<Result<Vec<_>, Error>>()?;
        let table = Table::new(core.options.limits.clone(), listeners.len() as u64 + 1);
        let acceptor = Acceptor {
            core,
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(local("epoll"))?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(local("eventfd"))?,
            listeners,
            table: Mutex::new(table),
            short: short_from(),
        };
        let add = |fd: std::os::fd::BorrowedFd<'_>, token: u64| {
            epoll::add(
                &acceptor.epoll,
                fd,
                EventData::new_u64(token),
                EventFlags::IN,
            )
            .map_err(local("epoll"))
        };
        use std::os::fd::AsFd;
        add(acceptor.wake.as_fd(), WAKE)?;
        for (index, (listener, _)) in acceptor.listeners.iter().enumerate() {
            add(listener.as_fd(), 1 + index as u64)?;
        }
        Ok(acceptor)
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|(_, address)| *address).collect()
    }

    pub fn half_open(&self) -> usize {
        lock(&self.table).len()
    }

    pub fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Accepts connections until the transport stops.
    pub fn run(&self) {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        while !self.core.stopped.load(Ordering::SeqCst) {
            let next = lock(&self.table).expire();
            let timeout = next.and_then(|at| {
                // Rounded up: the timer may come a little late, but not too early.
                let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
                Timespec::try_from(left).ok()
            });
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            if epoll::wait(&self.epoll, room, timeout.as_ref()).is_err() {
                continue;
            }
            // Handshakes come first: those nearly done have priority over new connections.
            for event in &events {
                if event.data.u64() > self.listeners.len() as u64 {
                    self.go_on(event.data.u64());
                }
            }
            for event in &events {
                let token = event.data.u64() as usize;
                if (1..=self.listeners.len()).contains(&token) {
                    self.accept(&self.listeners[token - 1].0);
                }
            }
        }
    }

    fn accept(&self, listener: &TcpListener) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..MAX_ACCEPTS_PER_ROUND {
            match acceptfrom_with(listener, flags) {
                Ok((socket, from)) => {
                    let Some(from) = from.and_then(|a| SocketAddr::try_from(a).ok()) else {
                        continue;
                    };
                    let mut table = lock(&self.table);
                    // The kernel gives the lowest free number, so a high one means that few are
                    // free.
                    if socket.as_raw_fd() >= self.short {
                        while table.len() >= WHERE_SHORT && table.drop_oldest() {}
                    }
                    let number = table.add(TcpStream::from(socket), from);
                    let data = EventData::new_u64(number);
                    let added = table
                        .get(number)
                        .map(|half| epoll::add(&self.epoll, &half.socket, data, EventFlags::IN));
                    if !matches!(added, Some(Ok(()))) {
                        table.remove(number);
                    }
                }
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    if !lock(&self.table).drop_oldest() {
                        std::thread::sleep(NO_DESCRIPTORS);
                        return;
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return,
            }
        }
    }

    /// Handles input on a half-open connection.
    fn go_on(&self, number: u64) {
        let mut table = lock(&self.table);
        let Some(half) = table.get(number) else {
            return;
        };
        let good = match half.read() {
            Brought::Part => true,
            Brought::End => false,
            Brought::Hello(hello) => self.hello(&mut table, number, &hello).is_some(),
            Brought::Confirm(confirm, sent) => {
                let half = table.remove(number);
                if let Some(half) = half {
                    let _ = epoll::delete(&self.epoll, &half.socket);
                    let joined = self.confirm(&mut table, half.socket, half.from, &confirm, *sent);
                    drop(table);
                    if let Some(session) = joined {
                        self.established(session);
                    }
                }
                return;
            }
        };
        if !good {
            table.remove(number);
        }
    }

    /// Answers a hello. None: the connection must be closed.
    fn hello(&self, table: &mut Table, number: u64, bytes: &[u8; HELLO]) -> Option<()> {
        let options = &self.core.options;
        let (called, hello) = Called::read(&options.key, &options.pool, bytes)?;
        if !table.is_new(bytes) {
            return None;
        }
        let status = match &hello {
            None => Status::Version,
            Some(hello) if hello.to != options.node => Status::OtherNode,
            Some(hello) if hello.lane == Lane::Bulk && !table.is_waiting(hello) => {
                Status::NoSession
            }
            Some(_) if self.core.is_full() => Status::Full,
            Some(_) => Status::Welcome,
        };
        let mut secret = [0; 24];
        random(&mut secret).ok()?;
        let welcome = Welcome {
            version: VERSION,
            status,
            encrypt: options.encrypt || hello.as_ref().is_some_and(|h| h.encrypt),
            session: *secret.first_chunk()?,
            seed: u64::from_le_bytes(*secret.last_chunk()?),
        };
        let (unconfirmed, bytes) = called.welcome(&welcome).ok()?;
        let half = table.get(number)?;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // The bytes fit into the socket's buffer, since nothing was sent before.
        let sent = send(&half.socket, &bytes, flags);
        if sent != Ok(bytes.len()) || status != Status::Welcome {
            return None;
        }
        half.expect_confirm(Welcomed {
            unconfirmed,
            hello: hello?,
            welcome,
        });
        table.proved(number);
        Some(())
    }

    /// Handles a confirm, which proves the key. Returns a session if this was the second lane.
    fn confirm(
        &self,
        table: &mut Table,
        socket: TcpStream,
        from: SocketAddr,
        bytes: &[u8; CONFIRM],
        sent: Welcomed,
    ) -> Option<Arc<Session>> {
        let Welcomed {
            unconfirmed,
            hello,
            welcome,
        } = sent;
        let seal = unconfirmed.confirm(bytes)?;
        let lane = Proved { socket, seal };
        if hello.lane == Lane::Control {
            let peer = Peer {
                node: hello.from,
                address: from,
            };
            table.wait(peer, lane, &welcome);
            return None;
        }
        let control = table.join(&hello)?;
        let (peer, encrypt, seed) = (control.peer, control.encrypt, control.seed);
        let lanes = [control.lane, lane];
        Session::new(&self.core, peer, true, encrypt, seed, lanes).ok()
    }

    fn established(&self, session: Arc<Session>) {
        // The session is reported before it is put into service, since requests may arrive as soon
        // as it is in service.
        self.core.handler.connected(session.clone());
        let _ = self.core.adopt(&session);
    }
}

/// Returns the first number of the last eighth of the descriptor numbers that this process may use.
fn short_from() -> i32 {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(i32::MAX, |n| i32::try_from(n - n / 8).unwrap_or(i32::MAX))
}

fn listen_on(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let bad = |why: String| Error::Listen { address, why };
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)
        .and_then(|socket| {
            sockopt::set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &address)?;
            listen(&socket, BACKLOG)?;
            Ok(socket)
        })
        .map_err(|e| bad(e.to_string()))?;
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().map_err(|e| bad(e.to_string()))?;
    Ok((listener, address))
}
