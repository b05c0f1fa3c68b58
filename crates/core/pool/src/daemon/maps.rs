//! The pool map of this daemon, in memory and in its file, and how two maps are merged.
//!
//! In this version only addresses change: the addresses of a daemon that was restarted and didn't
//! get its port again. When maps are merged, each node's own addresses come from that node,
//! everything else from the map with the higher epoch.

use super::wire::{GET_MAP, Hello, MAP, MAX_MAP};
use forebay_net::{Body, Connection, NodeId, Request};
use forebay_placement::PoolMap;
use forebay_placement::map::Address;
use forebay_runtime::threads::lock;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time limit for sending the map to another daemon.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// This daemon's pool map.
pub struct Maps {
    /// The node's directory.
    dir: PathBuf,
    me: NodeId,
    map: Mutex<Option<Arc<PoolMap>>>,
    /// Addresses on which this node listens.
    own: Mutex<Vec<Address>>,
}

/// The result of merging the map of another daemon.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// Nothing: this node's map is the same as before.
    Nothing,
    /// This node has the sender's map now.
    Theirs,
    /// This node now has a map that is newer than its own old one and than the sender's.
    More,
}

/// Reads the map in the node's directory `dir`; None if there is no valid one.
pub fn read(dir: &Path) -> Option<PoolMap> {
    let bytes = std::fs::read(dir.join("map")).ok()?;
    PoolMap::decode(&bytes).ok()
}

impl Maps {
    pub fn new(dir: &Path, me: NodeId) -> Maps {
        Maps {
            dir: dir.to_owned(),
            me,
            map: Mutex::default(),
            own: Mutex::default(),
        }
    }

    /// The current map.
    pub fn get(&self) -> Option<Arc<PoolMap>> {
        lock(&self.map).clone()
    }

    /// Sets the addresses of this node.
    pub fn set_own(&self, own: Vec<Address>) {
        *lock(&self.own) = own;
    }

    fn write(&self, map: &PoolMap) -> Result<(), Errno> {
        forebay_client::write_kept(&self.dir, "map", &map.encode())
            .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }

    /// Begins to use `map`, with this node's own addresses. Returns whether these differ from those
    /// in `map`.
    ///
    /// # Errors
    /// If the file `map` can't be written.
    pub fn adopt(&self, map: &PoolMap) -> Result<bool, Errno> {
        let mut present = lock(&self.map);
        let own = lock(&self.own).clone();
        let new = with_own(map.clone(), self.me, &own);
        let changed = new.epoch() != map.epoch();
        self.write(&new)?;
        *present = Some(Arc::new(new));
        Ok(changed)
    }

    /// Merges the map that the daemon of `from` has sent.
    pub fn learn(&self, theirs: PoolMap, from: NodeId) -> Learned {
        let mut present = lock(&self.map);
        let Some(mine) = present.clone() else {
            return Learned::Nothing;
        };
        if theirs.pool() != mine.pool() {
            return Learned::Nothing;
        }
        let of_sender = theirs.node(from).map(|n| n.addresses.clone());
        let epoch = theirs.epoch();
        let newest = if epoch > mine.epoch() {
            theirs
        } else {
            PoolMap::clone(&mine)
        };
        let own = lock(&self.own).clone();
        let mut new = with_own(newest, self.me, &own);
        if let Some(addresses) = of_sender {
            new = with_own(new, from, &addresses);
        }
        assert!(new.epoch() >= mine.epoch(), "a map's epoch doesn't go back");
        if new == *mine {
            return Learned::Nothing;
        }
        if let Err(e) = self.write(&new) {
            eprintln!("forebay keeper: can't write the pool's map: {e}");
        }
        forebay_trace::event!(MAP_LEARNED, new.epoch());
        let more = new.epoch() > epoch;
        *present = Some(Arc::new(new));
        if more { Learned::More } else { Learned::Theirs }
    }

    /// Sends the map over `connection`.
    pub fn send(&self, connection: &Arc<dyn Connection>) {
        let Some(map) = self.get() else { return };
        let request = Request {
            kind: MAP,
            body: Some(Box::new(map.encode())),
            ..Request::default()
        };
        // If the map doesn't arrive, the connection is cut, and the next one begins with a hello.
        let _ = connection.start(request, Instant::now() + SEND_LIMIT, Box::new(|_| {}));
    }

    /// Sends this node's map to the other side if, by its `hello`, the other side's map is older.
    /// If that map is newer, fetches and returns it. Called after the reply to a hello.
    pub fn compare(&self, connection: &Arc<dyn Connection>, hello: &Hello) -> Option<PoolMap> {
        let mine = self.get()?;
        if hello.epoch < mine.epoch() {
            self.send(connection);
            return None;
        }
        if hello.epoch == mine.epoch() || hello.map > MAX_MAP as u64 {
            return None;
        }
        let request = Request {
            kind: GET_MAP,
            // The map may have grown since the hello.
            landing: Some(Box::new(vec![0u8; hello.map as usize + (64 << 10)])),
            ..Request::default()
        };
        let reply = connection.call(request, Instant::now() + SEND_LIMIT);
        received(reply.ok()?.body?)
    }
}

/// Decodes the map that arrived as the body of a message; None if it isn't valid.
pub fn received(body: Body) -> Option<PoolMap> {
    let length = body.length;
    let bytes = body.into_landing::<Vec<u8>>()?;
    PoolMap::decode(&bytes[..length]).ok()
}

/// `map`, with the addresses `own` for `node`.
fn with_own(map: PoolMap, node: NodeId, own: &[Address]) -> PoolMap {
    match map.node(node) {
        Some(n) if n.addresses != own => map.with_addresses(node, own).unwrap_or(map),
        _ => map,
    }
}
