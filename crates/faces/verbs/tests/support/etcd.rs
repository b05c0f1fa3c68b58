//! An etcd for one test: it runs on this host and is removed at the test's end.

use super::Dir;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct TestEtcd {
    pub port: u16,
    peers: u16,
    dir: Dir,
    process: Option<Child>,
    /// Additional arguments of the server.
    arguments: Vec<String>,
}

/// Returns a free port.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

impl TestEtcd {
    pub fn new() -> TestEtcd {
        TestEtcd::with(&[])
    }

    /// Starts an etcd with these additional arguments.
    pub fn with(arguments: &[&str]) -> TestEtcd {
        // Another process may take a port before etcd does: then tries other ports.
        for _ in 0..5 {
            let mut etcd = TestEtcd {
                port: free_port(),
                peers: free_port(),
                dir: Dir::new(),
                process: None,
                arguments: arguments.iter().map(|a| (*a).into()).collect(),
            };
            if etcd.start() {
                return etcd;
            }
        }
        panic!("etcd didn't start on any of five ports");
    }

    /// Starts the server with the data it has stored. Returns false if it ends at once.
    pub fn start(&mut self) -> bool {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let (client, peer) = (url(self.port), url(self.peers));
        let mut command = Command::new("etcd");
        command
            .args([
                "--name",
                "test",
                "--data-dir",
                &format!("{}/data", self.dir.text()),
            ])
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &format!("test={peer}")])
            .args(["--unsafe-no-fsync", "--log-level", "error"])
            .args(&self.arguments)
            .env_clear()
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: prctl is only a system call, which is allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let process = command.spawn().unwrap_or_else(|e| {
            panic!("etcd can't be started: {e}; tests/install-packages installs it (etcd-server)")
        });
        self.process = Some(process);
        let until = Instant::now() + Duration::from_secs(60);
        while !self.answers() {
            let process = self.process.as_mut().unwrap();
            if process.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(Instant::now() < until, "etcd doesn't answer after 60 s");
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Whether the server has a leader and accepts writes.
    fn answers(&self) -> bool {
        let put = r#"{"key": "cHJvYmU=", "value": ""}"#;
        let reply = post(self.port, "/v3/kv/put", put);
        // An etcd with users refuses the write, but only once it has a leader.
        reply.is_ok_and(|text| text.contains("cluster_id") || text.contains("user name is empty"))
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Removes all data of the stopped server.
    pub fn wipe(&self) {
        std::fs::remove_dir_all(self.dir.0.join("data")).unwrap();
    }

    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the place of this etcd for a session. `rest`: a prefix and options.
    pub fn place(&self, rest: &str) -> String {
        format!("etcd://{}{rest}", self.endpoint())
    }

    pub fn ask(&self, path: &str, request: &str) -> String {
        post(self.port, path, request).unwrap()
    }

    /// Returns all keys of the server, with bytes that aren't text replaced.
    pub fn keys(&self) -> Vec<String> {
        let all = self.ask(
            "/v3/kv/range",
            r#"{"key": "AA==", "range_end": "AA==", "keys_only": true}"#,
        );
        let all: serde_json::Value = serde_json::from_str(&all).unwrap();
        let pairs = all["kvs"].as_array().cloned().unwrap_or_default();
        let text = |key: &str| String::from_utf8_lossy(&decoded(key)).into_owned();
        pairs
            .iter()
            .map(|pair| text(pair["key"].as_str().unwrap()))
            .collect()
    }

    /// Compacts all earlier revisions away.
    pub fn compact(&self) {
        let now = self.ask("/v3/kv/range", r#"{"key": "AA=="}"#);
        let now: serde_json::Value = serde_json::from_str(&now).unwrap();
        let revision = now["header"]["revision"].as_str().unwrap();
        let done = self.ask(
            "/v3/kv/compaction",
            &format!(r#"{{"revision": "{revision}", "physical": true}}"#),
        );
        assert!(done.contains("header"), "{done}");
    }
}

impl Drop for TestEtcd {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn encoded(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

pub fn decoded(text: &str) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .unwrap()
}

/// Sends a request by HTTP 1.0, and returns the body of the reply.
pub fn post(port: u16, path: &str, body: &str) -> std::io::Result<String> {
    post_as(port, path, body, "")
}

/// As [`post`], with a token unless `token` is empty.
pub fn post_as(port: u16, path: &str, body: &str, token: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let login = match token {
        "" => String::new(),
        token => format!("Authorization: {token}\r\n"),
    };
    let head = format!(
        "POST {path} HTTP/1.0\r\n{login}Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    Ok(body.into())
}
