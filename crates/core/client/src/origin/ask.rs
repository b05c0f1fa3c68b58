//! Sends requests to a pool's origin service, from the service's node or from another node.
//!
//! Every wait is bounded: a wait ends when no sign of progress comes for the origin's timeout, or
//! some seconds after the service last ran.

use super::request::Request;
use super::{MESSAGE, RESULT, SERVICE_NODE, SOCKET};
use forebay_cluster::Cluster;
use forebay_placement::NodeId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a process waits for a service that doesn't run, from the time when the service last
/// ran; and the interval between attempts to reach the service.
const RESTARTS: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_millis(50);
/// Pauses between checks for a message from another node's service: the first, and the maximum.
const FIRST_POLL_INTERVAL: Duration = Duration::from_micros(100);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A request that failed: the errno for the program, and a sentence for its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub error: Errno,
    pub text: String,
}

impl Refusal {
    fn new(error: Errno, text: &str) -> Refusal {
        Refusal {
            error,
            text: text.to_owned(),
        }
    }
}

/// The node from which a process sends requests.
pub struct Asker<'p> {
    /// The node's number.
    pub node: u32,
    pub dir: &'p Path,
    pub cluster: Cluster<'p>,
    /// Maximum time without a sign of progress.
    pub timeout: Duration,
}

/// Sends a request to the pool's origin service, and returns the result, a text. Blocks as long as
/// the service makes progress. If the service doesn't run, or dies meanwhile, waits for it and
/// sends the request again, since each request can be repeated.
///
/// # Errors
/// The errno of what failed at the origin or in the pool. ENOTCONN: the service doesn't run.
/// ETIMEDOUT: the service made no progress for the origin's timeout. EHOSTDOWN: the service's node
/// can't be reached.
pub fn ask(from: &Asker<'_>, request: &Request) -> Result<String, Refusal> {
    let mut seen = Instant::now();
    loop {
        let asked = match from.node {
            SERVICE_NODE => ask_here(from.dir, request, from.timeout, &mut seen),
            _ => {
                let service = NodeId(SERVICE_NODE);
                let mut on_progress = || seen = Instant::now();
                ask_there(
                    &from.cluster,
                    service,
                    request,
                    from.timeout,
                    &mut on_progress,
                )
            }
        };
        match asked {
            Err(refusal) if refusal.error == Errno::NOTCONN && seen.elapsed() < RESTARTS => {
                pause(RETRY);
            }
            result => return result,
        }
    }
}

fn pause(time: Duration) {
    let time = rustix::thread::Timespec {
        tv_sec: 0,
        tv_nsec: time.as_nanos() as i64,
    };
    let _ = rustix::thread::nanosleep(&time);
}

fn no_service(e: Errno) -> Refusal {
    if e == Errno::ACCESS {
        let text = "the origin is asked by processes of the pool's user only";
        return Refusal::new(e, text);
    }
    let text = format!("the pool's origin service doesn't answer ({e}): forebay up --reopen");
    Refusal::new(Errno::NOTCONN, &text)
}

fn no_progress(timeout: Duration) -> Refusal {
    let seconds = timeout.as_secs_f64();
    let text = format!("the origin has made no progress for {seconds} s");
    Refusal::new(Errno::TIMEDOUT, &text)
}

/// The result in a message. None: the message is a sign of progress.
fn result_of(message: &[u8]) -> Option<Result<String, Refusal>> {
    let [RESULT, e0, e1, e2, e3, text @ ..] = message else {
        return None;
    };
    let text = String::from_utf8_lossy(text).into_owned();
    Some(match i32::from_le_bytes([*e0, *e1, *e2, *e3]) {
        0 => Ok(text),
        error => Err(Refusal {
            error: Errno::from_raw_os_error(error),
            text,
        }),
    })
}

/// Sends an order to the copier of another node, and waits for the result. `on_progress` is called
/// at each sign of progress.
///
/// # Errors
/// The errno of what failed on that node. ENOTCONN: no copier runs there. ETIMEDOUT: the copier
/// made no progress for the timeout. EHOSTDOWN: the node can't be reached. After ETIMEDOUT and
/// EHOSTDOWN, the copier may still be carrying out the order.
pub fn order(
    from: &Asker<'_>,
    node: u32,
    request: &Request,
    on_progress: &mut dyn FnMut(),
) -> Result<String, Refusal> {
    ask_there(
        &from.cluster,
        NodeId(node),
        request,
        from.timeout,
        on_progress,
    )
}

/// Sends a request to the service or the copier of another node, through this node's daemon.
/// `on_progress` is called at each sign of progress.
fn ask_there(
    cluster: &Cluster<'_>,
    node: NodeId,
    request: &Request,
    timeout: Duration,
    on_progress: &mut dyn FnMut(),
) -> Result<String, Refusal> {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let number = u64::from(std::process::id()) << 32 | NUMBERS.fetch_add(1, Relaxed) & 0xffff_ffff;
    let failed = |e: Errno| match e {
        Errno::NOTCONN => no_service(e),
        e => {
            let text = format!("node {}, which has the origin, can't be asked: {e}", node.0);
            Refusal::new(e, &text)
        }
    };
    let mut bytes = request.encode();
    let (mut last, mut rest) = (Instant::now(), FIRST_POLL_INTERVAL);
    loop {
        let message = cluster.ask_origin(node, number, &bytes);
        bytes.clear();
        match message.map_err(failed)? {
            Some(message) => {
                if let Some(result) = result_of(&message) {
                    return result;
                }
                last = Instant::now();
                on_progress();
            }
            None if last.elapsed() > timeout => return Err(no_progress(timeout)),
            None => {
                pause(rest);
                rest = (rest * 2).min(MAX_POLL_INTERVAL);
            }
        }
    }
}

/// Sends a request to the service of this node. Sets `seen` to the last time when the service was
/// running.
fn ask_here(
    dir: &Path,
    request: &Request,
    timeout: Duration,
    seen: &mut Instant,
) -> Result<String, Refusal> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.map_err(no_service)?;
    let address = SocketAddrUnix::new(dir.join(SOCKET)).map_err(no_service)?;
    connect(&socket, &address).map_err(no_service)?;
    send(&socket, &request.encode(), SendFlags::NOSIGNAL).map_err(no_service)?;
    let mut message = vec![0; MESSAGE];
    loop {
        let limit = rustix::time::Timespec::try_from(timeout).ok();
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], limit.as_ref()) {
            Err(Errno::INTR) => continue,
            Err(e) => return Err(no_service(e)),
            Ok(0) => return Err(no_progress(timeout)),
            // Even the end of a connection is a sign: the service ran until now.
            Ok(_) => *seen = Instant::now(),
        }
        let n = match recv(&socket, &mut message[..], RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            Err(e) => return Err(no_service(e)),
            Ok((0, _)) => return Err(no_service(Errno::CONNRESET)),
            Ok((_, n)) => n.min(message.len()),
        };
        if let Some(result) = result_of(&message[..n]) {
            return result;
        }
    }
}
