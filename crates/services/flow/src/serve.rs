//! `forebay flow serve`: runs the service until SIGTERM or SIGINT.

use crate::config::Config;
use crate::engine::Engine;
use crate::http::{self, Handler, Head, Incoming, Reply};
use crate::service::Service;
use crate::{Result, api};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The address on which a service is reached.
#[derive(Debug)]
pub struct Listen {
    pub at: SocketAddr,
    /// Files with the TLS certificates and the key.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// Runs the service. Returns only if it can't begin. Calls `ready` with the address once requests
/// are accepted.
///
/// # Errors
/// Another service uses the state directory; the address isn't available, or needs TLS.
pub fn serve(
    state: &Path,
    config: Config,
    listen: &Listen,
    ready: &dyn Fn(&str),
    tell: fn(&str),
) -> Result<()> {
    let tls = match &listen.tls {
        Some((certificates, key)) => Some(http::tls(certificates, key)?),
        None if listen.at.ip().is_loopback() => None,
        None => {
            return Err(format!(
                "{} can be reached by others, who could read tokens: give --tls-cert and --tls-key, \
                 or listen on 127.0.0.1",
                listen.at
            ));
        }
    };
    let service = Arc::new(Service::open(state, config, tell)?);
    let listener = TcpListener::bind(listen.at).map_err(|e| format!("{}: {e}", listen.at))?;
    let at = listener.local_addr().map_err(|e| e.to_string())?;
    let mut engine = Engine::new(Arc::clone(&service));
    std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || engine.work(&|| false))
        .map_err(|e| format!("no thread: {e}"))?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    ready(&format!("{scheme}://{at}"));
    let handle = move |head: &Head, body: &mut Incoming<'_>| -> Reply {
        let began = Instant::now();
        let (reply, user) = api::answer(&service, head, body);
        // Successful GET requests aren't logged: so many reads of pages and states would hide the
        // changes.
        if head.method != "GET" || reply.status >= 400 {
            let time = began.elapsed().as_millis();
            let (peer, method, target) = (head.peer, &head.method, &head.target);
            service.tell(&format!(
                "{peer} {user} {method} {target} {} {time} ms",
                reply.status
            ));
        }
        reply
    };
    let handle: Arc<Handler> = Arc::new(handle);
    http::serve(&listener, tls.as_ref(), &handle, tell)
}
