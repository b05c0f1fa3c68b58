//! Misbehaving servers on this host: [`Server::new`] replies what a test wants, and
//! [`Server::relay`] loses another server's replies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// A server, which ends when this is dropped.
pub struct Server {
    pub port: u16,
    ending: Arc<AtomicBool>,
}

impl Server {
    /// Starts a server that calls `serve` for each connection, in a separate thread.
    pub fn new(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let ending = Arc::new(AtomicBool::new(false));
        let end = ending.clone();
        let serve = Arc::new(serve);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if end.load(SeqCst) {
                    break;
                }
                let serve = serve.clone();
                std::thread::spawn(move || serve(stream));
            }
        });
        Server { port, ending }
    }

    /// Starts a relay, which forwards requests to the server at `port`, and replies back. If `lose`
    /// returns true for a request, its reply is lost.
    pub fn relay(port: u16, lose: impl Fn(&str) -> bool + Send + Sync + 'static) -> Server {
        Server::new(move |stream| {
            let _ = pass_on(stream, port, &lose);
        })
    }

    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ending.store(true, SeqCst);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

/// Reads a request. Changes its head so that the connection ends with the reply.
pub fn request(stream: &TcpStream) -> std::io::Result<(String, String)> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if !line.to_ascii_lowercase().starts_with("connection:") {
            head.push_str(&line);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    head.push_str("Connection: close\r\n\r\n");
    Ok((head, String::from_utf8(body).unwrap()))
}

fn pass_on(mut stream: TcpStream, port: u16, lose: &dyn Fn(&str) -> bool) -> std::io::Result<()> {
    let (head, body) = request(&stream)?;
    let mut to = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    to.set_read_timeout(Some(Duration::from_secs(30)))?;
    to.write_all(head.as_bytes())?;
    to.write_all(body.as_bytes())?;
    let lost = lose(&body);
    let mut block = [0; 65536];
    loop {
        match to.read(&mut block)? {
            0 => return Ok(()),
            // Drops the reply after reading it to its end, so the request was carried out.
            _ if lost => {}
            n => stream.write_all(&block[..n])?,
        }
    }
}
