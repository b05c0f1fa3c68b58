//! References for traffic between nodes: two processes and one blocking TCP connection on loopback,
//! without Forebay. One process is the worker. Its peer (`forebay-bench peer ADDRESS`) replies as
//! each request demands, and ends with the connection.

use crate::remote::{Middle, median_of};
use crate::worker::Worker;
use crate::workloads::MIB;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// Size of a request or reply without file content. Bytes.
const MESSAGE: usize = 128;
/// Size of a request's head, which says how many bytes follow it and how many bytes the reply has.
/// Bytes. It is one cache line long, so that the content begins at the start of a cache line:
/// copying is slower otherwise.
const HEAD: usize = 64;

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> String {
    move |e| format!("{what}: {e}")
}

/// The worker's peer process. Dropping this value closes the connection, which ends the process.
struct Peer {
    connection: Option<TcpStream>,
    process: Child,
    data: Vec<u8>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.connection = None;
        let _ = self.process.wait();
    }
}

impl Peer {
    fn start() -> Result<Peer, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed("bind"))?;
        let address = listener.local_addr().map_err(failed("an address"))?;
        let me = std::env::current_exe().map_err(failed("my own program"))?;
        let process = Command::new(me)
            .args(["peer", &address.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed("the peer"))?;
        let mut peer = Peer {
            connection: None,
            process,
            data: Vec::new(),
        };
        // A peer that fails never connects. Then the driver's time limit ends the wait.
        let (connection, _) = listener.accept().map_err(failed("accept"))?;
        connection.set_nodelay(true).map_err(failed("nodelay"))?;
        peer.connection = Some(connection);
        Ok(peer)
    }

    /// Sends `up` bytes, and receives a reply of `down` bytes.
    fn ask(&mut self, up: usize, down: usize) -> Result<(), String> {
        self.send(up, down)?;
        self.receive(down)
    }

    fn send(&mut self, up: usize, down: usize) -> Result<(), String> {
        self.data.resize(self.data.len().max(up).max(down), 7);
        self.data[..4].copy_from_slice(&((up - HEAD) as u32).to_le_bytes());
        self.data[4..8].copy_from_slice(&(down as u32).to_le_bytes());
        let connection = self.connection.as_mut().ok_or("no connection")?;
        connection
            .write_all(&self.data[..up])
            .map_err(failed("send"))
    }

    fn receive(&mut self, down: usize) -> Result<(), String> {
        let connection = self.connection.as_mut().ok_or("no connection")?;
        connection
            .read_exact(&mut self.data[..down])
            .map_err(failed("receive"))
    }
}

/// The peer's main function: reads requests and replies as each demands, until the connection ends.
pub fn peer(address: &str) -> Result<(), String> {
    let mut connection = TcpStream::connect(address).map_err(failed("connect"))?;
    connection.set_nodelay(true).map_err(failed("nodelay"))?;
    // As large as the largest transfer, so that each side needs only one call for it.
    let mut data = vec![0; 17 * MIB];
    loop {
        match connection.read_exact(&mut data[..HEAD]) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            other => other.map_err(failed("receive"))?,
        }
        let number = |at| u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
        let (more, answer) = (number(0) as usize, number(4) as usize);
        connection
            .read_exact(&mut data[HEAD..HEAD + more])
            .map_err(failed("receive"))?;
        connection
            .write_all(&data[..answer])
            .map_err(failed("send"))?;
    }
}

/// Worker: round trips with `up` and `down` bytes of content. Reports the median time.
pub fn ping(w: &Worker, up: usize, down: usize) -> Result<(), String> {
    let mut peer = Peer::start()?;
    median_of(w, Middle::Half, |_| peer.ask(MESSAGE + up, MESSAGE + down))
}

/// Worker: COUNT transfers of PASSES MiB each to the peer (`up`) or from it. As in iperf, each
/// follows the one before without a reply; with `answered`, each waits until the peer has received
/// it.
pub fn transfers(w: &Worker, up: bool, answered: bool) -> Result<(), String> {
    let mut peer = Peer::start()?;
    let bytes = w.passes * MIB;
    // The first transfer grows the connection's window and touches all pages.
    peer.ask(bytes, bytes)?;
    let start = w.start()?;
    for i in 0..w.count {
        let is_last = i + 1 == w.count;
        if up {
            let answer = if answered || is_last { MESSAGE } else { 0 };
            peer.ask(bytes, answer)?;
        } else if answered {
            peer.ask(MESSAGE, bytes)?;
        } else {
            // One request is always sent ahead, so the peer never waits for the next one.
            if i == 0 {
                peer.send(MESSAGE, bytes)?;
            }
            if !is_last {
                peer.send(MESSAGE, bytes)?;
            }
            peer.receive(bytes)?;
        }
    }
    w.done(start, w.count * w.passes)
}

#[cfg(test)]
mod tests {
    use super::{HEAD, MESSAGE, peer};
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn the_peer_answers_with_as_much_as_is_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let other = std::thread::spawn(move || peer(&address));
        let (mut connection, _) = listener.accept().unwrap();
        for (up, down) in [(MESSAGE, 5), (HEAD, 70_000), (90_000, 0), (HEAD, 1)] {
            let mut request = vec![9; up];
            request[..4].copy_from_slice(&((up - HEAD) as u32).to_le_bytes());
            request[4..8].copy_from_slice(&(down as u32).to_le_bytes());
            connection.write_all(&request).unwrap();
            connection.read_exact(&mut vec![0; down]).unwrap();
        }
        drop(connection);
        other.join().unwrap().unwrap();
    }
}
