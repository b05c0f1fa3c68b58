//! Which connections may be open at once.
//!
//! A connection counts for its address until its request shows a valid token, and for the token
//! from then on. So requests that are never completed, from a login node or a proxy, take no place
//! from users behind the same address. Addresses of IPv6 count by their /64, of which a user may
//! have all.
//!
//! - A new connection always gets a place. If its address has [`MAX_OF_ONE`] already, or the
//!   service [`MAX_CONNECTIONS`], the slowest of the address or of the largest group loses its
//!   place: its socket is shut for reading, and its thread answers 503. Tokens' connections stay
//!   as long as there are others.
//! - A request whose token has [`MAX_OF_ONE`] in progress is refused (503).
//!
//! Lock order: the table's lock is the innermost; nothing is waited for under it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Maximum number of connections: all, and those of one address or token.
pub const MAX_CONNECTIONS: usize = 128;
pub const MAX_OF_ONE: usize = 32;
/// The credit of a connection at its start, so that new ones aren't the slowest. Bytes.
const CREDIT: u64 = 16 << 10;

/// For whom a connection counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Group {
    Address(IpAddr),
    Token(String),
}

/// The bits of an IPv6 address that name its network.
const NETWORK: u128 = !0 << 64;

impl Group {
    fn of(address: IpAddr) -> Group {
        Group::Address(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
            address => address,
        })
    }
}

/// State of an open connection. Its thread and the table share it.
struct Connection {
    tcp: Arc<TcpStream>,
    since: Instant,
    /// Bytes received and sent.
    bytes: AtomicU64,
    is_lost: AtomicBool,
    /// The reply is being sent.
    is_replying: AtomicBool,
}

impl Connection {
    /// Bytes a second since it was opened.
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

    /// The group with the most connections. Groups of addresses come first, if there are any; of
    /// equal groups `preferred`.
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

    /// Takes the place of the slowest connection of a group.
    fn shed(&mut self, group: &Group) {
        let now = Instant::now();
        let all = self.open.iter().filter(|(_, (g, _))| g == group);
        let slowest = all.min_by(|a, b| a.1.1.speed(now).total_cmp(&b.1.1.speed(now)));
        let Some(id) = slowest.map(|(id, _)| *id) else {
            return;
        };
        if let Some((_, connection)) = self.open.remove(&id) {
            // SeqCst, here and in `begin_reply`: one of both sides sees the other's flag.
            connection.is_lost.store(true, Ordering::SeqCst);
            // Wakes the connection's thread. If it hasn't begun to reply, it can still send the
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

/// The connections and requests that a service admits.
#[derive(Clone, Default)]
pub struct Admission(Arc<Mutex<Table>>);

/// The token has as many requests in progress as it may have.
#[derive(Debug, PartialEq, Eq)]
pub struct Busy;

impl Admission {
    pub fn new() -> Admission {
        Admission::default()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection. If all are taken, the slowest one loses its place.
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

/// A connection's place, until this is dropped or another connection gets it.
pub struct Place {
    admission: Admission,
    id: u64,
    connection: Arc<Connection>,
}

impl Place {
    /// Records bytes that were received or sent.
    pub fn moved(&self, bytes: usize) {
        let bytes = bytes as u64;
        self.connection.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether another connection has got the place.
    pub fn is_lost(&self) -> bool {
        self.connection.is_lost.load(Ordering::SeqCst)
    }

    /// Records that the reply is sent from now on. Returns whether the connection still has its
    /// place. Without it, only a short reply may be sent.
    pub fn begin_reply(&self) -> bool {
        self.connection.is_replying.store(true, Ordering::SeqCst);
        !self.connection.is_lost.load(Ordering::SeqCst)
    }

    /// Counts the connection for a token from now on.
    ///
    /// # Errors
    /// The token has [`MAX_OF_ONE`]. The connection continues to count for its address.
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
        // An IPv4 address, however it is written.
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
                // The last one of d stays its address's.
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
        // All have tokens now: the largest group gives way, not the smallest.
        let newer = admission.admit(HERE.into(), &all[0].connection.tcp);
        assert!(!newer.is_lost() && !new.is_lost());
    }
}
