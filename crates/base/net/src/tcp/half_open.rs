//! Connections that haven't proved the key yet, or not on both lanes. These connections are few,
//! small and short-lived.
//!
//! When there are too many, the oldest unproved connection is closed. So a peer that opens
//! thousands of connections displaces mostly its own. A connection that has proved the key on its
//! control lane waits for its bulk lane in a separate table, from which an unauthenticated peer
//! can't displace it.

use super::Limits;
use super::session::Proved;
use crate::handshake::{CONFIRM, HELLO, Hello, Unconfirmed, Welcome};
use crate::transport::Peer;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Instant;

/// Number of hellos that are remembered. A hello that is sent again isn't answered.
const REMEMBERED: usize = 4096;
/// Maximum number of control lanes that wait for their bulk lanes.
const WAITING: usize = 1024;

/// A connection during its handshake.
pub(super) struct HalfOpen {
    pub socket: TcpStream,
    pub from: SocketAddr,
    until: Instant,
    buffer: [u8; HELLO],
    filled: usize,
    stage: Stage,
}

/// A hello, and the welcome that was sent for it.
pub(super) struct Welcomed {
    pub unconfirmed: Unconfirmed,
    pub hello: Hello,
    pub welcome: Welcome,
}

enum Stage {
    Hello,
    Confirm(Box<Welcomed>),
}

/// Input that was read from a half-open connection.
pub(super) enum Brought {
    /// An incomplete message.
    Part,
    /// A hello message.
    Hello([u8; HELLO]),
    /// The confirm message that answers the stored welcome message.
    Confirm([u8; CONFIRM], Box<Welcomed>),
    /// The peer has closed the connection.
    End,
}

impl HalfOpen {
    /// Reads what is missing of the expected message, and no bytes after it.
    pub fn read(&mut self) -> Brought {
        let need = match self.stage {
            Stage::Hello => HELLO,
            Stage::Confirm(_) => CONFIRM,
        };
        let room = &mut self.buffer[self.filled..need];
        match recv(&self.socket, room, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Brought::End,
            Ok((n, _)) => self.filled += n,
            Err(Errno::AGAIN | Errno::INTR) => return Brought::Part,
            Err(_) => return Brought::End,
        }
        if self.filled < need {
            return Brought::Part;
        }
        assert!(
            self.filled == need,
            "a message of a handshake has its length"
        );
        self.filled = 0;
        match std::mem::replace(&mut self.stage, Stage::Hello) {
            Stage::Hello => Brought::Hello(self.buffer),
            Stage::Confirm(sent) => {
                let mut confirm = [0; CONFIRM];
                confirm.copy_from_slice(&self.buffer[..CONFIRM]);
                Brought::Confirm(confirm, sent)
            }
        }
    }

    /// Makes a confirm the next expected message. Called after a welcome was sent.
    pub fn expect_confirm(&mut self, sent: Welcomed) {
        self.stage = Stage::Confirm(Box::new(sent));
    }
}

/// A control lane whose bulk lane hasn't connected yet.
pub(super) struct Waiting {
    pub peer: Peer,
    pub lane: Proved,
    pub encrypt: bool,
    pub seed: u64,
    until: Instant,
}

/// All half-open connections.
pub(super) struct Table {
    limits: Limits,
    /// By number of the connection. Older connections have lower numbers.
    open: BTreeMap<u64, HalfOpen>,
    /// Numbers of connections that haven't proved the key by a hello.
    unproved: BTreeSet<u64>,
    of_one: HashMap<IpAddr, BTreeSet<u64>>,
    next: u64,
    waiting: HashMap<[u8; 16], Waiting>,
    seen: HashSet<[u8; 32]>,
    seen_order: VecDeque<[u8; 32]>,
}

impl Table {
    /// Creates the table. Numbers below `first` are reserved for the caller.
    pub fn new(limits: Limits, first: u64) -> Table {
        Table {
            limits,
            open: BTreeMap::new(),
            unproved: BTreeSet::new(),
            of_one: HashMap::new(),
            next: first,
            waiting: HashMap::new(),
            seen: HashSet::new(),
            seen_order: VecDeque::new(),
        }
    }

    /// Adds a connection and returns its number. Closes another one if there are too many.
    pub fn add(&mut self, socket: TcpStream, from: SocketAddr) -> u64 {
        let ip = from.ip();
        if self.of_one.get(&ip).map_or(0, BTreeSet::len) >= self.limits.half_open_of_one.max(1) {
            let of_one = &self.of_one[&ip];
            let oldest = of_one.iter().find(|n| self.unproved.contains(n));
            if let Some(&number) = oldest.or(of_one.first()) {
                self.remove(number);
            }
        }
        if self.open.len() >= self.limits.half_open.max(1) {
            self.drop_oldest();
        }
        let number = self.next;
        self.next += 1;
        let half = HalfOpen {
            socket,
            from,
            until: Instant::now() + self.limits.handshake,
            buffer: [0; HELLO],
            filled: 0,
            stage: Stage::Hello,
        };
        let other = self.open.insert(number, half);
        assert!(
            other.is_none(),
            "a connection has a number of its own: {number}"
        );
        assert!(
            self.open.len() <= self.limits.half_open.max(1),
            "connections that prove nothing have a limit"
        );
        self.unproved.insert(number);
        self.of_one.entry(ip).or_default().insert(number);
        number
    }

    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Closes the oldest unproved connection or, if none is unproved, the oldest one. False: there
    /// is none.
    pub fn drop_oldest(&mut self) -> bool {
        let oldest = self.unproved.first().or(self.open.keys().next());
        let oldest = oldest.copied();
        oldest.is_some_and(|number| self.remove(number).is_some())
    }

    pub fn get(&mut self, number: u64) -> Option<&mut HalfOpen> {
        self.open.get_mut(&number)
    }

    pub fn proved(&mut self, number: u64) {
        self.unproved.remove(&number);
    }

    pub fn remove(&mut self, number: u64) -> Option<HalfOpen> {
        let half = self.open.remove(&number)?;
        self.unproved.remove(&number);
        let ip = half.from.ip();
        if let Some(of_one) = self.of_one.get_mut(&ip) {
            let was = of_one.remove(&number);
            debug_assert!(was, "a connection is counted at its address");
            if of_one.is_empty() {
                self.of_one.remove(&ip);
            }
        }
        Some(half)
    }

    /// Registers a hello that proved the key. False: the hello was received before.
    pub fn is_new(&mut self, hello: &[u8; HELLO]) -> bool {
        // The hello begins with a public key that was made for it alone.
        let Some(key) = hello.first_chunk::<32>() else {
            return false;
        };
        if !self.seen.insert(*key) {
            return false;
        }
        self.seen_order.push_back(*key);
        debug_assert_eq!(
            self.seen.len(),
            self.seen_order.len(),
            "hellos are kept in order"
        );
        if self.seen_order.len() > REMEMBERED
            && let Some(old) = self.seen_order.pop_front()
        {
            self.seen.remove(&old);
        }
        true
    }

    /// Stores a control lane until its bulk lane connects. None if there are too many.
    pub fn wait(&mut self, peer: Peer, lane: Proved, welcome: &Welcome) -> Option<()> {
        if self.waiting.len() >= WAITING {
            return None;
        }
        let waiting = Waiting {
            peer,
            lane,
            encrypt: welcome.encrypt,
            seed: welcome.seed,
            until: Instant::now() + self.limits.handshake,
        };
        self.waiting.insert(welcome.session, waiting);
        Some(())
    }

    pub fn is_waiting(&self, hello: &Hello) -> bool {
        (self.waiting.get(&hello.session)).is_some_and(|w| w.peer.node == hello.from)
    }

    pub fn join(&mut self, hello: &Hello) -> Option<Waiting> {
        if !self.is_waiting(hello) {
            return None;
        }
        self.waiting.remove(&hello.session)
    }

    /// Closes connections whose time limit has passed. Returns the time at which the next one
    /// expires.
    pub fn expire(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.waiting.retain(|_, w| w.until > now);
        // All connections have the same time limit, so the oldest ones expire first.
        while let Some((&number, half)) = self.open.first_key_value() {
            if half.until > now {
                break;
            }
            self.remove(number);
        }
        let next = self.open.first_key_value().map(|(_, half)| half.until);
        let waiting = self.waiting.values().map(|w| w.until).min();
        next.into_iter().chain(waiting).min()
    }
}
