//! Requests of other nodes to this node's origin service.
//!
//! The service (`crates/services/origin`) listens on a socket in the node's directory, and sends
//! messages while it works. For a request of another node, the daemon keeps a connection to the
//! service, under a number that the requesting node has chosen. The requesting node fetches one
//! message after the other. No handler waits for the service, which may take minutes. A restarted
//! daemon has lost the connections; the requesting node then begins again.

use super::{Call, lock};
use crate::peers::requests::Origin;
use forebay_placement::NodeId;
use forebay_store::ObjectId;
use rustix::fd::OwnedFd;
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Name of the origin service's socket in a node's directory.
pub const SOCKET: &str = "origin.sock";
/// Maximum size of a message. Bytes.
pub const MESSAGE: usize = 32 << 10;
/// A message's first byte. `PROGRESS`: the service is working on the request. `RESULT`: the message
/// is the result, and the last one.
pub const PROGRESS: u8 = 0;
pub const RESULT: u8 = 1;
/// Maximum number of other nodes' requests that have a connection to the service.
const CONNECTED: usize = 1024;
/// Time after which a request is removed if no process has fetched its messages: the requesting
/// process has died.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// A request in progress.
struct OriginRequest {
    service: OwnedFd,
    /// When the requesting node last fetched a message.
    at: Instant,
}

/// Other nodes' requests that are in progress at the origin service.
#[derive(Default)]
pub struct Origins {
    dir: OnceLock<PathBuf>,
    in_progress: Mutex<HashMap<(NodeId, u64), OriginRequest>>,
}

impl Origins {
    /// Sets the node's directory, which contains the service's socket.
    pub fn of(&self, dir: PathBuf) {
        let _ = self.dir.set(dir);
    }

    fn begin(&self, request: &[u8]) -> Result<OriginRequest> {
        let dir = self.dir.get().ok_or(Errno::NOTCONN)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let service = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&service, &SocketAddrUnix::new(dir.join(SOCKET))?)?;
        send(&service, request, SendFlags::NOSIGNAL)?;
        Ok(OriginRequest {
            service,
            at: Instant::now(),
        })
    }
}

impl Origin for Call<'_> {
    fn origin(&self, number: u64, request: Vec<u8>) -> Result<Option<Vec<u8>>> {
        let key = (self.from, number);
        let mut in_progress = lock(&self.server.origins.in_progress);
        if !request.is_empty() {
            in_progress.retain(|_, in_progress| in_progress.at.elapsed() < FORGOTTEN);
            if in_progress.len() >= CONNECTED {
                return Err(Errno::AGAIN);
            }
            let begun = self.server.origins.begin(&request).map_err(|e| match e {
                Errno::AGAIN => e,
                _ => Errno::NOTCONN,
            })?;
            in_progress.insert(key, begun);
        }
        let one = in_progress.get_mut(&key).ok_or(Errno::NOTCONN)?;
        one.at = Instant::now();
        let mut message = vec![0; MESSAGE];
        let n = match recv(&one.service, &mut message[..], RecvFlags::empty()) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Ok((_, n)) if n > 0 => n.min(MESSAGE),
            // The service has died.
            Ok(_) | Err(_) => {
                in_progress.remove(&key);
                return Err(Errno::NOTCONN);
            }
        };
        message.truncate(n);
        if message[0] == RESULT {
            in_progress.remove(&key);
        }
        Ok(Some(message))
    }

    fn quota(&self, granted: Option<(i64, i64)>) -> Result<(i64, i64)> {
        Ok(self.store().quota().exchange(granted))
    }

    fn is_open(&self, id: ObjectId) -> Result<bool> {
        self.store().objects().is_open(self.home(id)?)
    }
}
