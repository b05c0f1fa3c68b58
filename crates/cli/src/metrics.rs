//! Serves a node's metrics in Prometheus' text format, on a socket in the node's directory.
//!
//! The keeper answers HTTP/1.0 on `metrics.sock`, which only the pool's user can open: `curl
//! --unix-socket DIR/metrics.sock http://localhost/metrics`. `forebay stats --prometheus` prints
//! the same metrics of all nodes on this host, for collectors that read files.

use crate::output::print_notice;
use forebay_client::{Place, Pool, places};
use forebay_report::node::Node;
use forebay_report::totals::{Durations, Totals, of_node};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The socket's name in the node's directory.
const SOCKET: &str = "metrics.sock";
/// How long a client may take to send its request, and then to receive the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a request. Bytes.
const REQUEST: usize = 8 << 10;

/// Name, type and meaning of each metric.
pub const METRICS: &[(&str, &str, &str)] = &[
    (
        "forebay_operations_total",
        "counter",
        "Operations of programs that have ended, by kind",
    ),
    (
        "forebay_operation_bytes_total",
        "counter",
        "Bytes that operations moved, by kind",
    ),
    (
        "forebay_operation_errors_total",
        "counter",
        "Operations that failed, by kind",
    ),
    (
        "forebay_remote_operations_total",
        "counter",
        "Operations that asked other nodes, by kind",
    ),
    (
        "forebay_operation_seconds",
        "histogram",
        "How long operations took, by kind; of frequent kinds a sample",
    ),
    (
        "forebay_requests_seconds",
        "histogram",
        "How long requests to other nodes took",
    ),
    (
        "forebay_sent_bytes_total",
        "counter",
        "Bytes of files sent to other nodes",
    ),
    (
        "forebay_received_bytes_total",
        "counter",
        "Bytes of files received from other nodes",
    ),
    (
        "forebay_lock_wait_seconds",
        "histogram",
        "How long processes waited for locks",
    ),
    (
        "forebay_slow_operations_total",
        "counter",
        "Operations slower than the bound",
    ),
    (
        "forebay_processes",
        "gauge",
        "Processes that use the node and have counted something",
    ),
    (
        "forebay_medium_capacity_bytes",
        "gauge",
        "Capacity of a medium",
    ),
    (
        "forebay_medium_used_bytes",
        "gauge",
        "Bytes in use of a medium",
    ),
    (
        "forebay_record_bytes",
        "gauge",
        "Bytes of records and small files",
    ),
    (
        "forebay_trace_ring_bytes",
        "gauge",
        "Memory of recorded events",
    ),
];

struct Text {
    text: String,
    labels: String,
}

impl Text {
    fn head(&mut self, name: &str) {
        if let Some((_, kind, help)) = METRICS.iter().find(|m| m.0 == name) {
            let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        }
    }

    fn put(&mut self, name: &str, more: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.text, "{name}{{{}{more}}} {value}", self.labels);
    }

    fn histogram(&mut self, name: &str, more: &str, d: &Durations) {
        let mut below = 0;
        for (end, count) in &d.classes {
            below += count;
            self.put(
                &format!("{name}_bucket"),
                &format!("{more},le=\"{}\"", *end as f64 / 1e9),
                below,
            );
        }
        self.put(
            &format!("{name}_bucket"),
            &format!("{more},le=\"+Inf\""),
            d.timed,
        );
        self.put(&format!("{name}_sum"), more, d.nanoseconds as f64 / 1e9);
        self.put(&format!("{name}_count"), more, d.timed);
    }
}

/// Escapes the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Formats the metrics of these nodes of a pool.
pub fn text(pool: &str, nodes: &[(Node, Option<Arc<Pool>>)]) -> Result<String, rustix::io::Errno> {
    let mut text = Text {
        text: String::new(),
        labels: String::new(),
    };
    let mut all = Vec::new();
    for (node, pool) in nodes {
        let processes = of_node(node)?;
        let mut totals = Totals::default();
        processes.iter().for_each(|p| totals.add(&p.totals));
        let alive = processes.iter().filter(|p| p.process != 0).count();
        all.push((node, pool, totals, alive));
    }
    // The format requires that all samples of a metric are together.
    for (name, ..) in METRICS {
        text.head(name);
        for (node, opened, totals, alive) in &all {
            text.labels = format!("pool=\"{}\",node=\"{}\"", escaped(pool), node.number.0);
            let by_kind = |text: &mut Text, value: fn(&forebay_report::totals::Counted) -> u64| {
                for (kind, counted) in &totals.operations {
                    text.put(name, &format!(",operation=\"{kind}\""), value(counted));
                }
            };
            let head = &node.shared().head;
            let relaxed = std::sync::atomic::Ordering::Relaxed;
            match *name {
                "forebay_operations_total" => by_kind(&mut text, |c| c.count),
                "forebay_operation_bytes_total" => by_kind(&mut text, |c| c.bytes),
                "forebay_operation_errors_total" => by_kind(&mut text, |c| c.errors),
                "forebay_remote_operations_total" => by_kind(&mut text, |c| c.remote),
                "forebay_operation_seconds" => {
                    for (kind, counted) in &totals.operations {
                        text.histogram(name, &format!(",operation=\"{kind}\""), &counted.durations);
                    }
                }
                "forebay_requests_seconds" => text.histogram(name, "", &totals.requests),
                "forebay_lock_wait_seconds" => text.histogram(name, "", &totals.waits),
                "forebay_sent_bytes_total" => text.put(name, "", totals.sent),
                "forebay_received_bytes_total" => text.put(name, "", totals.received),
                "forebay_slow_operations_total" => {
                    text.put(name, "", head.slow_count.load(relaxed))
                }
                "forebay_processes" => text.put(name, "", alive),
                "forebay_trace_ring_bytes" => text.put(name, "", head.rings.load(relaxed)),
                "forebay_medium_capacity_bytes" | "forebay_medium_used_bytes" => {
                    for (i, u) in opened.iter().flat_map(|p| p.usage()).enumerate() {
                        let more =
                            format!(",medium=\"{i}\",spec=\"{}\"", escaped(&u.spec.to_string()));
                        let value = if name.contains("used") {
                            u.used
                        } else {
                            u.capacity
                        };
                        text.put(name, &more, value);
                    }
                }
                "forebay_record_bytes" => {
                    if let Some(bytes) = opened.as_ref().and_then(|p| p.store().files.used().ok()) {
                        text.put(name, "", bytes);
                    }
                }
                _ => {}
            }
        }
    }
    Ok(text.text)
}

/// Serves the metrics of a node on a thread of this process, until the pool is removed.
pub fn serve(pool: &Arc<Pool>) {
    let dir = pool.dir().to_owned();
    let path = dir.join(SOCKET);
    // A killed keeper may have left its socket.
    let _ = std::fs::remove_file(&path);
    let listener = match UnixListener::bind(&path) {
        Ok(listener) => listener,
        Err(e) => return print_notice(format!("keeper: no metrics: {}: {e}", path.display())),
    };
    let weak = Arc::downgrade(pool);
    let thread = std::thread::Builder::new().name("fb-metrics".into());
    let started = thread.spawn(move || {
        for client in listener.incoming().flatten() {
            // Clients are answered one after the other: a slow one delays the others by at most two
            // times `CLIENT_TIMEOUT`.
            if answer(&client, &dir, &weak).is_none() {
                return;
            }
        }
    });
    if let Err(e) = started {
        print_notice(format!("keeper: no metrics: {e}"));
    }
}

/// Answers one request. Returns None if the pool no longer exists.
fn answer(mut client: &UnixStream, dir: &Path, pool: &Weak<Pool>) -> Option<()> {
    let pool = pool.upgrade()?;
    let received = Deadline::after(CLIENT_TIMEOUT);
    let mut request = vec![0; REQUEST];
    let mut len = 0;
    while !request[..len].windows(4).any(|w| w == b"\r\n\r\n") && len < REQUEST {
        let _ = client.set_read_timeout(Some(received.left()));
        match client.read(&mut request[len..]) {
            Ok(0) | Err(_) => return Some(()),
            Ok(_) if received.is_over() => return Some(()),
            Ok(n) => len += n,
        }
    }
    let config = pool.config();
    let place = Place {
        node: config.member.map(|m| m.node),
        dir: dir.to_owned(),
    };
    let body = Node::open(&place)
        .and_then(|node| text(&config.name, &[(node, Some(pool.clone()))]))
        .map_err(|e| format!("the counters can't be read: {e}\n"));
    let (status, body) = match (request.starts_with(b"GET /metrics"), body) {
        (false, _) => ("404 Not Found", "only GET /metrics is served\n".to_owned()),
        (true, Ok(body)) => ("200 OK", body),
        (true, Err(why)) => ("500 Internal Server Error", why),
    };
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: \
            {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let sent = Deadline::after(CLIENT_TIMEOUT);
    let answer = [head, body].concat();
    let mut left = answer.as_bytes();
    while !left.is_empty() && !sent.is_over() {
        let _ = client.set_write_timeout(Some(sent.left()));
        match client.write(left) {
            Ok(0) | Err(_) => break,
            Ok(n) => left = &left[n..],
        }
    }
    Some(())
}

/// The end of a bounded wait.
struct Deadline(Instant);

impl Deadline {
    fn after(time: Duration) -> Deadline {
        Deadline(Instant::now() + time)
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.0
    }

    /// The time that is left; at least 1 ms, since sockets take 0 for no bound.
    fn left(&self) -> Duration {
        let left = self.0.saturating_duration_since(Instant::now());
        left.max(Duration::from_millis(1))
    }
}

/// Returns the metrics of all nodes of the pool on this host.
pub fn of_pool(name: &str) -> Result<String, crate::fail::Fail> {
    let nodes = crate::trace::nodes(name)?;
    let open = |place: &Place| Pool::open_dir(&place.dir).ok().map(Arc::new);
    let pools: Vec<Option<Arc<Pool>>> = places(name).iter().map(open).collect();
    let nodes: Vec<_> = nodes.into_iter().zip(pools).collect();
    text(name, &nodes)
        .map_err(|e| crate::fail::Fail::failed(format!("the counters can't be read: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_lists_all() {
        let mut text = String::from(
            "# Metrics\n\nOf each node, in Prometheus' text format; labels `pool` and `node`, and those named.\n\
             Made from the table in `crates/cli/src/metrics.rs` by\n\
             `FOREBAY_WRITE_DOCS=1 cargo test --profile checks -p forebay-cli metrics`. How to get them:\n\
             [tracing](../howto/tracing.md#metrics).\n\n| metric | type | what | more labels |\n|---|---|---|---|\n",
        );
        for (name, kind, what) in METRICS {
            let labels = match *name {
                n if n.contains("operation") && !n.contains("slow") => "`operation`",
                n if n.contains("medium") => "`medium`, `spec`",
                _ => "",
            };
            let _ = writeln!(text, "| `{name}` | {kind} | {what} | {labels} |");
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .and_then(Path::parent);
        let file = root.unwrap().join("docs/reference/metrics.md");
        if std::env::var_os("FOREBAY_WRITE_DOCS").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(&file).unwrap_or_default(),
            text,
            "docs/reference/metrics.md is stale: FOREBAY_WRITE_DOCS=1 cargo test --profile checks -p forebay-cli \
                metrics"
        );
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
