//! Faults of a network, for tests: a relay between a node and the nodes that call it.
//!
//! A caller connects to [`Relay::address`] instead of the node's address. The relay forwards bytes
//! until a fault is set. It can delay them, hold them, cut connections at once or after a number of
//! bytes, flip a bit, or send again what a caller has sent, on a new connection. The code under
//! test is the real one.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often a thread of the relay checks for changed faults.
const ASIDE: Duration = Duration::from_millis(20);

/// The faults that a relay causes, on existing and new connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Delay before bytes are forwarded.
    pub delay: Duration,
    /// Whether nothing is forwarded, on existing and new connections.
    pub hold: bool,
    /// As `hold`, but only towards the caller: the node gets all requests, the caller no replies.
    pub hold_back: bool,
    /// As `hold`, but only towards the node.
    pub hold_to_node: bool,
    /// Each connection is cut after this many bytes towards the node.
    pub cut_after: Option<u64>,
    /// On each connection, the lowest bit of the byte at this offset towards the node is flipped.
    pub flip: Option<u64>,
    /// As `flip`, towards the caller.
    pub flip_back: Option<u64>,
}

/// A relay on this machine.
pub struct Relay {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    node: Mutex<SocketAddr>,
    faults: Mutex<Faults>,
    stopped: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
    /// Bytes that callers have sent, by connection.
    sent: Mutex<Vec<Arc<Mutex<Vec<u8>>>>>,
}

/// Maximum number of bytes of a connection that are recorded.
const REMEMBERED: usize = 64 << 10;

impl Relay {
    /// Starts a relay to the node at `node`.
    ///
    /// # Errors
    /// If the relay can't listen on loopback.
    pub fn start(node: SocketAddr) -> std::io::Result<Relay> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            node: Mutex::new(node),
            faults: Mutex::default(),
            stopped: AtomicBool::new(false),
            open: Mutex::default(),
            sent: Mutex::default(),
        });
        let there = shared.clone();
        let thread = Some(std::thread::spawn(move || there.run(&listener)));
        Ok(Relay {
            shared,
            address,
            thread,
        })
    }

    /// The address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Directs new connections to `node`, which may have been started after the relay.
    pub fn lead_to(&self, node: SocketAddr) {
        *lock(&self.shared.node) = node;
    }

    /// Sets the faults.
    pub fn set(&self, faults: Faults) {
        *lock(&self.shared.faults) = faults;
    }

    /// Cuts all connections. New connections can be made.
    pub fn cut(&self) {
        for socket in lock(&self.shared.open).drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Returns the recorded first bytes that callers have sent, by connection.
    pub fn recorded(&self) -> Vec<Vec<u8>> {
        let sent = lock(&self.shared.sent);
        sent.iter().map(|bytes| lock(bytes).clone()).collect()
    }

    /// Sends recorded bytes to the node again, on a new connection. Returns what the node sends
    /// until it closes the connection, or within `wait`.
    ///
    /// # Errors
    /// Errors of the connection.
    pub fn replay(&self, bytes: &[u8], wait: Duration) -> std::io::Result<Vec<u8>> {
        let mut socket = TcpStream::connect(*lock(&self.shared.node))?;
        // The node may close the connection before it has received everything.
        let _ = socket.write_all(bytes);
        let until = Instant::now() + wait;
        let mut answer = Vec::new();
        let mut room = [0; 4096];
        while let left = until.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            socket.set_read_timeout(Some(left))?;
            match socket.read(&mut room) {
                Ok(n) if n > 0 => answer.extend_from_slice(&room[..n]),
                _ => break,
            }
        }
        Ok(answer)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.cut();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn run(self: &Arc<Self>, listener: &TcpListener) {
        let mut threads = Vec::new();
        while !self.stopped() {
            let held = lock(&self.faults).hold;
            let Some((caller, _)) = (!held).then(|| listener.accept().ok()).flatten() else {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            };
            if let Ok(both) = self.connect(caller) {
                threads.extend(both);
            }
        }
        self.cut_all();
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn cut_all(&self) {
        for socket in lock(&self.open).drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn connect(self: &Arc<Self>, caller: TcpStream) -> std::io::Result<[JoinHandle<()>; 2]> {
        let to = *lock(&self.node);
        let node = TcpStream::connect(to)?;
        let sent = Arc::new(Mutex::new(Vec::new()));
        lock(&self.sent).push(sent.clone());
        for socket in [&caller, &node] {
            socket.set_nonblocking(false)?;
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(ASIDE))?;
            lock(&self.open).push(socket.try_clone()?);
        }
        let there = (caller.try_clone()?, node.try_clone()?);
        let back = (node, caller);
        let (a, b) = (self.clone(), self.clone());
        Ok([
            std::thread::spawn(move || a.pass(there.0, there.1, Some(&sent))),
            std::thread::spawn(move || b.pass(back.0, back.1, None)),
        ])
    }

    /// Forwards bytes until either side closes its connection. `sent` records the direction towards
    /// the node.
    fn pass(&self, mut from: TcpStream, mut to: TcpStream, sent: Option<&Mutex<Vec<u8>>>) {
        let mut room = vec![0; 256 << 10];
        let mut passed = 0u64;
        while !self.stopped() {
            let n = match from.read(&mut room) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    continue;
                }
                Err(_) => break,
            };
            let mut bytes = &mut room[..n];
            let mut faults = *lock(&self.faults);
            let held = |faults: &Faults| match sent {
                Some(_) => faults.hold || faults.hold_to_node,
                None => faults.hold || faults.hold_back,
            };
            while held(&faults) && !self.stopped() {
                std::thread::sleep(Duration::from_millis(2));
                faults = *lock(&self.faults);
            }
            std::thread::sleep(faults.delay);
            let flip = match sent {
                Some(_) => faults.flip,
                None => faults.flip_back,
            };
            if let Some(at) = flip.and_then(|at| at.checked_sub(passed))
                && let Some(byte) = bytes.get_mut(at as usize)
            {
                *byte ^= 1;
            }
            let cut = match (sent, faults.cut_after) {
                (Some(_), Some(limit)) => {
                    let left = limit.saturating_sub(passed).min(n as u64) as usize;
                    bytes = &mut bytes[..left];
                    passed + left as u64 == limit
                }
                _ => false,
            };
            if let Some(sent) = sent {
                let mut sent = lock(sent);
                let room = REMEMBERED.saturating_sub(sent.len());
                sent.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            passed += bytes.len() as u64;
            if to.write_all(bytes).is_err() || cut {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}
