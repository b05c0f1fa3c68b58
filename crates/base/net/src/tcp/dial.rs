//! The calling side: connects both lanes to a node, on the caller's thread.

use super::Core;
use super::session::{Proved, Session};
use crate::Error;
use crate::envelope::VERSION;
use crate::handshake::{Caller, HELLO, Hello, Lane, Status, Welcome};
use crate::transport::Peer;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the called node may refuse a bulk lane because it doesn't know the session of the
/// control lane yet.
const OVERTAKING: Duration = Duration::from_secs(1);

pub(super) fn connect(
    core: &Arc<Core>,
    peer: Peer,
    deadline: Instant,
) -> Result<Arc<Session>, Error> {
    if core.stopped.load(Ordering::SeqCst) {
        return Err(Error::Local("this node leaves".into()));
    }
    if core.is_full() {
        return Err(Error::Local("this node has too many connections".into()));
    }
    let deadline = deadline.min(Instant::now() + core.options.limits.handshake);
    let (control, welcome) = lane(core, peer, Lane::Control, [0; 16], deadline)?;
    let bulk = bulk_lane(core, peer, welcome.session, deadline)?;
    let (encrypt, seed) = (welcome.encrypt, welcome.seed);
    let session = Session::new(core, peer, false, encrypt, seed, [control, bulk])?;
    core.adopt(&session)?;
    Ok(session)
}

/// Connects the bulk lane. The lane's hello may arrive before the confirm of the control lane,
/// since the lanes are two TCP connections.
fn bulk_lane(
    core: &Core,
    peer: Peer,
    session: [u8; 16],
    deadline: Instant,
) -> Result<Proved, Error> {
    let until = deadline.min(Instant::now() + OVERTAKING);
    let mut pause = Duration::from_millis(1);
    loop {
        match lane(core, peer, Lane::Bulk, session, deadline) {
            Err(Error::Refused { why, .. })
                if why == Status::NoSession.words() && Instant::now() + pause < until =>
            {
                std::thread::sleep(pause);
                pause *= 2;
            }
            other => return other.map(|(proved, _)| proved),
        }
    }
}

/// Connects one lane, up to the end of the handshake.
fn lane(
    core: &Core,
    peer: Peer,
    lane: Lane,
    session: [u8; 16],
    deadline: Instant,
) -> Result<(Proved, Welcome), Error> {
    let options = &core.options;
    let hello = Hello {
        version: VERSION,
        lane,
        encrypt: options.encrypt,
        from: options.node,
        to: peer.node,
        session,
    };
    let (caller, bytes) = Caller::start(&options.key, &options.pool, &hello)?;
    let failed = |e: std::io::Error| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Deadline { peer },
        ErrorKind::UnexpectedEof
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe => Error::Silent { peer },
        _ => Error::Unreachable {
            peer,
            why: e.to_string(),
        },
    };
    let left = time_left(deadline).map_err(failed)?;
    let mut socket =
        TcpStream::connect_timeout(&peer.address, left).map_err(|e| match e.kind() {
            ErrorKind::TimedOut => Error::Deadline { peer },
            _ => Error::Unreachable {
                peer,
                why: e.to_string(),
            },
        })?;
    // Hello and confirm fit into a new socket's buffer, so writing them doesn't block.
    let _ = socket.set_nodelay(true);
    socket.write_all(&bytes).map_err(failed)?;
    let mut answer = [0; HELLO];
    read_all(&mut socket, &mut answer, deadline).map_err(failed)?;
    let (welcome, seal, confirm) = caller.finish(&answer).ok_or(Error::Silent { peer })?;
    match welcome.status {
        Status::Welcome => {}
        Status::Version => {
            return Err(Error::Version {
                peer,
                theirs: welcome.version,
                ours: VERSION,
            });
        }
        status => {
            return Err(Error::Refused {
                peer,
                why: status.words(),
            });
        }
    }
    socket.write_all(&confirm).map_err(failed)?;
    Ok((Proved { socket, seal }, welcome))
}

fn time_left(deadline: Instant) -> std::io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(left)
}

fn read_all(socket: &mut TcpStream, mut room: &mut [u8], deadline: Instant) -> std::io::Result<()> {
    while !room.is_empty() {
        socket.set_read_timeout(Some(time_left(deadline)?))?;
        match socket.read(room) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => room = &mut room[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
