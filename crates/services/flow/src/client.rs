//! The client of the service's interface, for commands.

use crate::http::encoded;
use crate::{Result, token};
use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use serde_json::{Value, json};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::http::Response;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

const CONNECT: Duration = Duration::from_secs(10);
/// Maximum time without a reply. Making a campaign takes up to a minute.
const SILENCE: Duration = Duration::from_secs(90);
/// Maximum size of a JSON reply. Bytes.
const MAX_REPLY_BYTES: u64 = 64 << 20;
/// Maximum number of attempts to send a request. A request is sent again if the service is busy, or
/// if no reply comes and the request may be repeated.
const ATTEMPTS: u32 = 3;
/// Maximum pause before a request is sent again, even if the service requests a longer one.
/// Seconds.
const MAX_RETRY_AFTER: u64 = 10;
/// Maximum size of a file that is sent without asking the service first (Expect: 100-continue).
/// Bytes.
const MAX_UNANNOUNCED_BYTES: u64 = 64 << 10;

/// The address of the service, and the token to use.
#[derive(Debug)]
pub struct Settings {
    /// `https://HOST:PORT`
    pub server: String,
    pub token: String,
    /// File with certificates that are trusted instead of the public ones.
    pub ca: Option<PathBuf>,
}

/// The outcome of sending a request.
type Sent = std::result::Result<Response<ureq::Body>, ureq::Error>;

pub struct Client {
    agent: ureq::Agent,
    server: String,
    token: String,
}

impl Client {
    /// Returns a client. Doesn't connect yet.
    ///
    /// # Errors
    /// The certificates can't be read; the address isn't valid, or would show the token to others.
    pub fn new(settings: &Settings) -> Result<Client> {
        let server = settings.server.trim_end_matches('/').to_owned();
        let is_here = ["http://127.0.0.1", "http://localhost", "http://[::1]"];
        let is_here = is_here.iter().any(|here| {
            let rest = server.strip_prefix(here);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        });
        if !server.starts_with("https://") && !is_here {
            return Err(format!(
                "'{server}' isn't safe for a token: write https://HOST:PORT"
            ));
        }
        let roots = match &settings.ca {
            None => RootCerts::WebPki,
            Some(path) => trusted(path)?,
        };
        let tls = TlsConfig::builder().root_certs(roots).build();
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .max_idle_connections(0)
            .tls_config(tls)
            .build();
        Ok(Client {
            agent: config.into(),
            server,
            token: settings.token.clone(),
        })
    }

    fn url(&self, parts: &[&str]) -> String {
        let parts: Vec<String> = parts.iter().map(|p| encoded(p)).collect();
        format!("{}/api/v1/{}", self.server, parts.join("/"))
    }

    fn file(&self, workflow: &str, path: &str) -> String {
        let mut parts = vec!["workflows", workflow, "files"];
        parts.extend(path.split('/'));
        self.url(&parts)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }

    /// Sends a request, and returns the response. A busy service (503) has not carried out the
    /// request, so the request is sent again. Without a response, it is sent again only if
    /// `may_repeat`.
    fn response(&self, may_repeat: bool, send: &dyn Fn() -> Sent) -> Result<Response<ureq::Body>> {
        let mut attempt = 1;
        loop {
            let pause = match send() {
                Ok(response) if response.status() == 503 && attempt < ATTEMPTS => {
                    let after = response.headers().get("retry-after");
                    let after = after.and_then(|v| v.to_str().ok()?.parse().ok());
                    Duration::from_secs(after.unwrap_or(1).min(MAX_RETRY_AFTER))
                }
                Ok(response) => return Ok(response),
                Err(_) if may_repeat && attempt < ATTEMPTS => Duration::from_millis(300) * attempt,
                Err(e) => return Err(format!("{}: {e}", self.server)),
            };
            std::thread::sleep(pause);
            attempt += 1;
        }
    }

    fn ask(&self, may_repeat: bool, send: &dyn Fn() -> Sent) -> Result<Value> {
        self.response(may_repeat, send).and_then(read)
    }

    /// Requests the JSON value at a path of the interface.
    ///
    /// # Errors
    /// The service's message, or a message that the service can't be reached.
    pub fn get(&self, parts: &[&str], query: &str) -> Result<Value> {
        let url = self.url(parts) + query;
        self.ask(true, &|| {
            self.agent
                .get(&url)
                .header("authorization", self.bearer())
                .call()
        })
    }

    fn post(&self, parts: &[&str], body: &Value, key: Option<&str>) -> Result<Value> {
        let (url, body) = (self.url(parts), body.to_string());
        let send = || {
            let mut request = self.agent.post(&url);
            request = request.header("authorization", self.bearer());
            request = request.header("content-type", "application/json");
            if let Some(key) = key {
                request = request.header("idempotency-key", key);
            }
            request.send(body.as_bytes())
        };
        self.ask(key.is_some(), &send)
    }

    /// Creates a workflow.
    ///
    /// # Errors
    /// The errors of [`Client::get`].
    pub fn create(&self, workflow: &Value) -> Result<Value> {
        self.post(&["workflows"], workflow, None)
    }

    /// Starts a run. The request has a key, so that it starts only one run even if it is repeated.
    ///
    /// # Errors
    /// The errors of [`Client::get`].
    pub fn start(&self, workflow: &str, parameters: &Value) -> Result<Value> {
        let key = token::hex(&token::random::<16>()?);
        self.post(&["workflows", workflow, "runs"], parameters, Some(&key))
    }

    /// Approves a rule of a run. Without a rule, cancels the run.
    ///
    /// # Errors
    /// The errors of [`Client::get`].
    pub fn act(&self, workflow: &str, run: &str, rule: Option<&str>) -> Result<Value> {
        match rule {
            Some(rule) => self.post(
                &["workflows", workflow, "runs", run, "approve"],
                &json!({ "rule": rule }),
                None,
            ),
            None => self.post(
                &["workflows", workflow, "runs", run, "cancel"],
                &Value::Null,
                None,
            ),
        }
    }

    /// Uploads a file.
    ///
    /// # Errors
    /// The errors of [`Client::get`]; the file can't be read.
    pub fn upload(&self, workflow: &str, path: &str, from: &Path) -> Result<()> {
        let url = self.file(workflow, path);
        let failed = |e: std::io::Error| format!("{}: {e}", from.display());
        let file = untrusted::open(from, Links::Follow).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let send = || {
            (&file).seek(SeekFrom::Start(0))?;
            let mut request = self.agent.put(&url);
            request = request.header("authorization", self.bearer());
            request = request.header("content-length", size.to_string());
            if size > MAX_UNANNOUNCED_BYTES {
                request = request.header("expect", "100-continue");
            }
            request.send(ureq::SendBody::from_reader(&mut (&file).take(size)))
        };
        self.ask(false, &send).map(|_| ())
    }

    /// Downloads a file of a workflow to a writer.
    ///
    /// # Errors
    /// The errors of [`Client::get`].
    pub fn download(&self, workflow: &str, path: &str, to: &mut dyn std::io::Write) -> Result<()> {
        let url = self.file(workflow, path);
        let response = self.response(true, &|| {
            let request = self.agent.get(&url);
            request.header("authorization", self.bearer()).call()
        })?;
        if !response.status().is_success() {
            return read(response).map(|_| ());
        }
        let mut body = response.into_body();
        let copied = std::io::copy(&mut body.as_reader(), to);
        copied.map(|_| ()).map_err(|e| format!("{path}: {e}"))
    }

    /// Deletes a file of a workflow, or the whole workflow.
    ///
    /// # Errors
    /// The errors of [`Client::get`].
    pub fn delete(&self, workflow: &str, path: Option<&str>) -> Result<()> {
        let url = match path {
            Some(path) => self.file(workflow, path),
            None => self.url(&["workflows", workflow]),
        };
        let send = || {
            let request = self.agent.delete(&url);
            request.header("authorization", self.bearer()).call()
        };
        self.ask(false, &send).map(|_| ())
    }
}

/// Returns the JSON value of a response, or its message as an error.
fn read(response: Response<ureq::Body>) -> Result<Value> {
    let status = response.status();
    let mut text = String::new();
    let mut body = response.into_body();
    let reader = body
        .as_reader()
        .take(MAX_REPLY_BYTES)
        .read_to_string(&mut text);
    reader.map_err(|e| format!("the reply ended early: {e}"))?;
    let value: Value = if text.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(&text)
            .map_err(|_| format!("the reply (status {status}) is no JSON: is that the service?"))?
    };
    if status.is_success() {
        Ok(value)
    } else {
        Err(value["error"]
            .as_str()
            .map_or_else(|| format!("refused with status {status}"), str::to_owned))
    }
}

fn trusted(path: &Path) -> Result<RootCerts> {
    let text = untrusted::read(path, Links::Named, MAX_SETTINGS)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let mut all: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&text) {
        let item = item.map_err(|e| format!("{}: {e}", path.display()))?;
        if let PemItem::Certificate(certificate) = item {
            all.push(certificate);
        }
    }
    if all.is_empty() {
        Err(format!("{} has no certificates", path.display()))
    } else {
        Ok(RootCerts::from(all))
    }
}
