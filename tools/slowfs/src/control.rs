//! The socket by which a mounted file system gets orders: one line of JSON in, one line out.
//!
//! | order | reply |
//! |---|---|
//! | `{"set": {SETTINGS}}` | `{}`: the settings hold from now on; those not given are off |
//! | `"stats"` | the counters |
//! | `"reset"` | `{}`: the counters are 0 |
//!
//! An invalid order gets `{"error": "…"}`.

use crate::effects::Effects;
use crate::settings::Settings;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Order {
    Set(Settings),
    Stats,
    Reset,
}

/// Listens for orders at a socket with this path, until the process ends.
///
/// # Errors
/// As bind(2).
pub fn serve(path: &Path, effects: Arc<Effects>) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let effects = effects.clone();
            // A client that has disconnected needs no reply.
            std::thread::spawn(move || answer(&connection, &effects));
        }
    });
    Ok(())
}

fn answer(connection: &UnixStream, effects: &Effects) -> io::Result<()> {
    for line in BufReader::new(connection).lines() {
        let reply = match serde_json::from_str(&line?) {
            Ok(order) => obey(order, effects),
            Err(e) => json!({ "error": e.to_string() }),
        };
        let mut connection = connection;
        connection.write_all(format!("{reply}\n").as_bytes())?;
    }
    Ok(())
}

fn obey(order: Order, effects: &Effects) -> Value {
    match order {
        Order::Set(settings) => match settings.check() {
            Ok(()) => effects.set(settings),
            Err(e) => return json!({ "error": e }),
        },
        Order::Reset => effects.reset(),
        Order::Stats => return json!(effects.stats()),
    }
    json!({})
}

/// Sends an order to the file system whose socket has this path. Returns the reply.
///
/// # Errors
/// As connect(2), read(2) and write(2).
pub fn tell(path: &Path, order: &str) -> io::Result<String> {
    let connection = UnixStream::connect(path)?;
    let mut out = &connection;
    out.write_all(format!("{order}\n").as_bytes())?;
    let mut reply = String::new();
    BufReader::new(&connection).read_line(&mut reply)?;
    Ok(reply)
}
