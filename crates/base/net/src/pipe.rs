//! An encrypted byte stream in each direction between two processes that share a key, over one TCP
//! connection. Used to launch daemons where no remote shell is used. Running daemons use
//! [`tcp`](crate::tcp).

use crate::envelope::{TAG, VERSION};
use crate::handshake::{CONFIRM, Called, Caller, HELLO, Hello, Lane, Seal, Status, Welcome};
use crate::{NodeId, PoolId, PoolKey};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum size of a piece. Bytes.
const PIECE: usize = 32 << 10;

/// The pool's id in the handshake: none, since each launch has a key of its own.
const NO_POOL: PoolId = PoolId([0; 16]);

/// The receiving direction.
pub struct PipeReader {
    socket: TcpStream,
    seal: Arc<Seal>,
    nonce: u64,
}

/// The sending direction.
pub struct PipeWriter {
    socket: TcpStream,
    seal: Arc<Seal>,
    nonce: u64,
}

fn left(deadline: Instant) -> Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(ErrorKind::TimedOut.into())
    } else {
        Ok(left)
    }
}

fn receive<const N: usize>(mut socket: &TcpStream, deadline: Instant) -> Result<[u8; N]> {
    let (mut bytes, mut at) = ([0; N], 0);
    while at < N {
        socket.set_read_timeout(Some(left(deadline)?))?;
        match socket.read(&mut bytes[at..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => at += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            Err(e) => return Err(e),
        }
    }
    Ok(bytes)
}

fn other(why: &str) -> Error {
    Error::other(why.to_owned())
}

fn ends(socket: TcpStream, seal: Seal, out: u64, come: u64) -> Result<(PipeReader, PipeWriter)> {
    socket.set_read_timeout(None)?;
    socket.set_nodelay(true)?;
    let seal = Arc::new(seal);
    let reader = PipeReader {
        socket: socket.try_clone()?,
        seal: seal.clone(),
        nonce: come,
    };
    let writer = PipeWriter {
        socket,
        seal,
        nonce: out,
    };
    Ok((reader, writer))
}

/// Connects to the process that listens for `node` at one of these addresses.
///
/// # Errors
/// If no process at any of the addresses has the key.
pub fn call(
    addresses: &[SocketAddr],
    key: &PoolKey,
    node: NodeId,
    deadline: Instant,
) -> Result<(PipeReader, PipeWriter)> {
    let mut last = other("it has no address");
    for (i, address) in addresses.iter().enumerate() {
        // Each address gets an equal share of the remaining time.
        let share = left(deadline)? / (addresses.len() - i) as u32;
        match call_one(address, key, node, Instant::now() + share) {
            Ok(pipe) => return Ok(pipe),
            Err(e) => last = Error::new(e.kind(), format!("{address}: {e}")),
        }
    }
    Err(last)
}

fn call_one(
    address: &SocketAddr,
    key: &PoolKey,
    node: NodeId,
    deadline: Instant,
) -> Result<(PipeReader, PipeWriter)> {
    let mut socket = TcpStream::connect_timeout(address, left(deadline)?)?;
    let hello = Hello {
        version: VERSION,
        lane: Lane::Control,
        encrypt: true,
        from: NodeId(0),
        to: node,
        session: [0; 16],
    };
    let (caller, bytes) =
        Caller::start(key, &NO_POOL, &hello).map_err(|e| other(&e.to_string()))?;
    socket.write_all(&bytes)?;
    let welcome: [u8; HELLO] = receive(&socket, deadline)?;
    let (welcome, seal, confirm) = caller
        .finish(&welcome)
        .ok_or_else(|| other("the process that answers there doesn't hold the key"))?;
    if welcome.status != Status::Welcome {
        return Err(other(welcome.status.words()));
    }
    socket.write_all(&confirm)?;
    // The handshake's confirm message was message number 0 of this side.
    ends(socket, seal, 1, 0)
}

/// Answers a process that calls `node`, on `socket`.
///
/// # Errors
/// If the calling process doesn't hold the key.
pub fn answer(
    mut socket: TcpStream,
    key: &PoolKey,
    node: NodeId,
    deadline: Instant,
) -> Result<(PipeReader, PipeWriter)> {
    let bytes: [u8; HELLO] = receive(&socket, deadline)?;
    let (called, hello) = Called::read(key, &NO_POOL, &bytes)
        .ok_or_else(|| other("an unauthenticated peer: it doesn't hold the key"))?;
    let status = match hello {
        None => Status::Version,
        Some(hello) if hello.to != node => Status::OtherNode,
        Some(_) => Status::Welcome,
    };
    let welcome = Welcome {
        version: VERSION,
        status,
        encrypt: true,
        session: [0; 16],
        seed: 0,
    };
    let (unconfirmed, bytes) = called
        .welcome(&welcome)
        .map_err(|e| other(&e.to_string()))?;
    socket.write_all(&bytes)?;
    if status != Status::Welcome {
        return Err(other(status.words()));
    }
    let confirm: [u8; CONFIRM] = receive(&socket, deadline)?;
    let seal = unconfirmed
        .confirm(&confirm)
        .ok_or_else(|| other("it replays a recorded hello"))?;
    ends(socket, seal, 0, 1)
}

impl PipeReader {
    /// Returns the next piece; an empty one after the last.
    ///
    /// # Errors
    /// If the connection is cut, or a piece was changed in transit.
    pub fn next_piece(&mut self) -> Result<Vec<u8>> {
        let mut length = [0; 2];
        self.socket.read_exact(&mut length)?;
        let mut sealed = vec![0; usize::from(u16::from_le_bytes(length))];
        self.socket.read_exact(&mut sealed)?;
        let mut plain = vec![0; sealed.len()];
        let n = self
            .seal
            .open(self.nonce, &sealed, &mut plain)
            .map_err(Error::other)?;
        self.nonce += 1;
        plain.truncate(n);
        Ok(plain)
    }
}

impl PipeWriter {
    /// Sends these bytes.
    ///
    /// # Errors
    /// If the connection is cut.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        bytes.chunks(PIECE).try_for_each(|piece| self.piece(piece))
    }

    /// Announces that no more bytes follow.
    ///
    /// # Errors
    /// If the connection is cut.
    pub fn finish(mut self) -> Result<()> {
        self.piece(&[])
    }

    fn piece(&mut self, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= PIECE, "a piece has a limit: {}", bytes.len());
        let mut message = ((bytes.len() + TAG) as u16).to_le_bytes().to_vec();
        self.seal
            .seal(self.nonce, bytes, &mut message)
            .map_err(Error::other)?;
        self.nonce += 1;
        self.socket.write_all(&message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn bytes_go_both_ways_between_holders_of_the_key() {
        let key = PoolKey::generate().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let soon = || Instant::now() + Duration::from_secs(10);
        let theirs = key.clone();
        let server = std::thread::spawn(move || {
            // Unauthenticated peers, a call for another node, and garbage come before the right
            // caller.
            let mut refused = 0;
            loop {
                let (socket, _) = listener.accept().unwrap();
                let until = Instant::now() + Duration::from_millis(500);
                let Ok((mut reader, mut writer)) = answer(socket, &theirs, NodeId(3), until) else {
                    refused += 1;
                    continue;
                };
                let mut all = Vec::new();
                loop {
                    let piece = reader.next_piece().unwrap();
                    if piece.is_empty() {
                        break;
                    }
                    all.extend(piece);
                }
                all.reverse();
                writer.send(&all).unwrap();
                writer.finish().unwrap();
                return refused;
            }
        });
        let wrong_key = PoolKey::generate().unwrap();
        assert!(call(&[address], &wrong_key, NodeId(3), soon()).is_err());
        assert!(call(&[address], &key, NodeId(4), soon()).is_err());
        let mut raw = TcpStream::connect(address).unwrap();
        raw.write_all(&[7; HELLO]).unwrap();
        drop(raw);
        // A caller that sends nothing is dropped.
        let silent = TcpStream::connect(address).unwrap();
        let nobody = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let (mut reader, mut writer) = call(&[nobody, address], &key, NodeId(3), soon()).unwrap();
        let bytes: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        writer.send(&bytes[..5]).unwrap();
        writer.send(&bytes[5..]).unwrap();
        writer.finish().unwrap();
        let mut back = Vec::new();
        loop {
            let piece = reader.next_piece().unwrap();
            if piece.is_empty() {
                break;
            }
            back.extend(piece);
        }
        back.reverse();
        assert_eq!(back, bytes);
        assert_eq!(server.join().unwrap(), 4);
        drop(silent);
    }
}
