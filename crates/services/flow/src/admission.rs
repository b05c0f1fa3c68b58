//! Admission of connections: which of them may be open at the same time.
//!
//! A connection counts for its address until its request has shown a valid token. From then on it
//! counts for the token. So requests that are never completed don't keep out users behind the same
//! address, such as a login node or proxy. IPv6 addresses count by their /64 network, since one
//! user may have all of its addresses.
//!
//! - A new connection is always admitted. If the connection's address has [`MAX_OF_ONE`]
//!   connections already, the slowest of them loses its place. If the service has
//!   [`MAX_CONNECTIONS`], the slowest connection of the address or token with the most connections
//!   does. The loser's socket is shut down for reading, and its thread replies 503. Connections of
//!   tokens lose their place only if no other connections exist.
//! - A request whose token has [`MAX_OF_ONE`] requests in progress is refused (503).
//!
//! Lock order: the table's lock is the innermost. Nothing blocks while it is held.

use forebay_runtime::threads::lock;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// Maximum number of connections: of all, and of one address or token.
pub const MAX_CONNECTIONS: usize = 128;
pub const MAX_OF_ONE: usize = 32;
/// Number of bytes that a new connection is credited with, so that it isn't the slowest.
const CREDIT: u64 = 16 << 10;

/// The address or token for which a connection counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Group {
    Address(IpAddr),
    Token(String),
}

/// Mask of the network part of an IPv6 address.
const NETWORK: u128 = !0 << 64;

impl Group {
    fn of(address: IpAddr) -> Group {
        Group::Address(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
            address => address,
        })
    }
}

/// The state of an open connection, shared by its thread and the table.
struct Connection {
    tcp: Arc<TcpStream>,
    since: Instant,
    /// Number of bytes received and sent.
    bytes: AtomicU64,
    is_lost: AtomicBool,
    /// Whether the reply is being sent.
    is_replying: AtomicBool,
}

impl Connection {
    /// Returns the connection's average rate since it was opened. Bytes per second.
    fn speed(&self, now: Instant) -> f64 {
        let bytes = self.bytes.load(Ordering::Relaxed) + CREDIT;
        bytes as f64 / (now - self.since).as_secs_f64().max(1e-6)
    }
}

#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, (Group, Arc<Connection>)>,
}

impl Table {
    fn count(&self, group: &Group) -> usize {
        self.open.values().filter(|(g, _)| g == group).count()
    }

    /// Returns the group with the most connections. Groups of tokens are considered only if there
    /// are no groups of addresses. Of several groups with the most, returns `preferred` if it is
    /// among them.
    fn largest(&self, preferred: &Group) -> Group {
        let mut counts: HashMap<&Group, usize> = HashMap::new();
        for (group, _) in self.open.values() {
            *counts.entry(group).or_default() += 1;
        }
        if counts.keys().any(|g| matches!(g, Group::Address(_))) {
            counts.retain(|g, _| matches!(g, Group::Address(_)));
        }
        let most = counts.values().copied().max().unwrap_or(0);
        if counts.get(preferred) == Some(&most) {
            return preferred.clone();
        }
        let found = counts.into_iter().find(|(_, n)| *n == most);
        found.map_or_else(|| preferred.clone(), |(group, _)| group.clone())
    }

    /// Removes the slowest connection of a group from the table.
    fn shed(&mut self, group: &Group) {
        let now = Instant::now();
        let all = self.open.iter().filter(|(_, (g, _))| g == group);
        let slowest = all.min_by(|a, b| a.1.1.speed(now).total_cmp(&b.1.1.speed(now)));
        let Some(id) = slowest.map(|(id, _)| *id) else {
            return;
        };
        if let Some((_, connection)) = self.open.remove(&id) {
            // SeqCst here and in `begin_reply`: at least one of the two threads sees the other's
            // flag.
            connection.is_lost.store(true, Ordering::SeqCst);
            // Wakes the connection's thread. A thread that hasn't begun to reply can still send the
            // reason.
            let how = if connection.is_replying.load(Ordering::SeqCst) {
                Shutdown::Both
            } else {
                Shutdown::Read
            };
            let _ = connection.tcp.shutdown(how);
        }
    }
}

/// The table of admitted connections.
#[derive(Clone, Default)]
pub struct Admission(Arc<Mutex<Table>>);

/// The error of a token that has the maximum number of requests in progress.
#[derive(Debug, PartialEq, Eq)]
pub struct Busy;

impl Admission {
    pub fn new() -> Admission {
        Admission::default()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.0)
    }

    /// Admits a new connection. If there are too many, the slowest one loses its place.
    pub fn admit(&self, from: IpAddr, tcp: &Arc<TcpStream>) -> Place {
        let group = Group::of(from);
        let connection = Arc::new(Connection {
            tcp: Arc::clone(tcp),
            since: Instant::now(),
            bytes: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
            is_replying: AtomicBool::new(false),
        });
        let mut table = self.table();
        if table.count(&group) >= MAX_OF_ONE {
            table.shed(&group);
        } else if table.open.len() >= MAX_CONNECTIONS {
            let largest = table.largest(&group);
            table.shed(&largest);
        }
        let id = table.next;
        table.next += 1;
        table.open.insert(id, (group, Arc::clone(&connection)));
        Place {
            admission: self.clone(),
            id,
            connection,
        }
    }
}

/// One connection's right to be served. It ends when this is dropped, or when another connection
/// takes the place.
pub struct Place {
    admission: Admission,
    id: u64,
    connection: Arc<Connection>,
}

impl Place {
    /// Counts bytes that were received or sent.
    pub fn moved(&self, bytes: usize) {
        let bytes = bytes as u64;
        self.connection.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether this connection has lost its place to another one.
    pub fn is_lost(&self) -> bool {
        self.connection.is_lost.load(Ordering::SeqCst)
    }

    /// Records that sending the reply begins. Returns whether the connection still has its place.
    /// A connection without a place may only send a short reply.
    pub fn begin_reply(&self) -> bool {
        self.connection.is_replying.store(true, Ordering::SeqCst);
        !self.connection.is_lost.load(Ordering::SeqCst)
    }

    /// Counts the connection for a token from now on.
    ///
    /// # Errors
    /// The token has [`MAX_OF_ONE`] connections. This connection continues to count for its
    /// address.
    pub fn belongs_to(&self, token: &str) -> Result<(), Busy> {
        let group = Group::Token(token.to_owned());
        let mut table = self.admission.table();
        if table.count(&group) >= MAX_OF_ONE {
            return Err(Busy);
        }
        if let Some((of, _)) = table.open.get_mut(&self.id) {
            *of = group;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.table().open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::Duration;

    const HERE: [u8; 4] = [127, 0, 0, 1];

    fn admit(admission: &Admission, last: u8) -> Place {
        admit_from(admission, [10, 0, 0, last].into())
    }

    fn admit_from(admission: &Admission, address: IpAddr) -> Place {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        admission.admit(address, &Arc::new(tcp))
    }

    #[test]
    fn addresses_of_a_network_count_together() {
        let admission = Admission::new();
        let of_six = |n: u16| Ipv6Addr::new(0x2001, 0xdb8, 0, 1, n, n, n, n).into();
        let all: Vec<Place> = (0..MAX_OF_ONE as u16 + 1)
            .map(|n| admit_from(&admission, of_six(n)))
            .collect();
        assert_eq!(all.iter().filter(|p| p.is_lost()).count(), 1);
        let other = Ipv6Addr::new(0x2001, 0xdb8, 0, 2, 0, 0, 0, 1);
        let other = admit_from(&admission, other.into());
        assert_eq!(all.iter().filter(|p| p.is_lost()).count(), 1);
        // An IPv4 address that is written as an IPv6 address is the same group.
        let mapped = "::ffff:10.0.0.1".parse::<IpAddr>().unwrap();
        assert_eq!(Group::of(mapped), Group::of([10, 0, 0, 1].into()));
        drop(other);
    }

    #[test]
    fn the_slowest_of_the_address_loses_its_place() {
        let admission = Admission::new();
        let all: Vec<Place> = (0..MAX_OF_ONE).map(|_| admit(&admission, 1)).collect();
        std::thread::sleep(Duration::from_millis(5));
        for (n, place) in all.iter().enumerate() {
            place.moved(if n == 7 { 10 } else { 1 << 20 });
        }
        let other = admit(&admission, 2);
        assert!(all.iter().all(|p| !p.is_lost()), "another address");
        let new = admit(&admission, 1);
        let lost: Vec<usize> = (0..all.len()).filter(|&n| all[n].is_lost()).collect();
        assert_eq!(lost, [7]);
        assert!(!new.is_lost() && !other.is_lost());
        drop((all, new, other));
        assert!(admission.table().open.is_empty());
    }

    #[test]
    fn requests_with_a_token_count_for_it_alone() {
        let admission = Admission::new();
        let mine: Vec<Place> = (0..MAX_OF_ONE)
            .map(|_| {
                let place = admit(&admission, 1);
                place.belongs_to("a").unwrap();
                place
            })
            .collect();
        let more: Vec<Place> = (0..3 * MAX_OF_ONE).map(|_| admit(&admission, 1)).collect();
        assert!(mine.iter().all(|p| !p.is_lost()), "shed by its address");
        let kept = more.iter().filter(|p| !p.is_lost()).count();
        assert_eq!(kept, MAX_OF_ONE);
        let last = more.last().unwrap();
        assert_eq!(last.belongs_to("a"), Err(Busy));
        assert_eq!(last.belongs_to("b"), Ok(()));
    }

    #[test]
    fn those_without_a_token_give_way_to_others() {
        let admission = Admission::new();
        let mut all = Vec::new();
        for token in ["a", "b", "c", "d"] {
            for _ in 0..MAX_OF_ONE {
                let place = admit(&admission, 1);
                // The last connection of token d continues to count for its address.
                if all.len() < MAX_CONNECTIONS - 1 {
                    place.belongs_to(token).unwrap();
                }
                all.push(place);
            }
        }
        let new = admission.admit(HERE.into(), &all[0].connection.tcp);
        assert!(!new.is_lost());
        assert_eq!(new.belongs_to("e"), Ok(()));
        assert_eq!(all.iter().filter(|p| p.is_lost()).count(), 1);
        assert_eq!(admission.table().open.len(), MAX_CONNECTIONS);
        assert!(all.last().unwrap().is_lost(), "one with a token was shed");
        // All connections have tokens now: one of the largest group loses its place, none of the
        // smallest.
        let newer = admission.admit(HERE.into(), &all[0].connection.tcp);
        assert!(!newer.is_lost() && !new.is_lost());
    }
}
