//! A node's own part in the start of its pool: its store, its keeper, its place in the map.

use super::{Begin, Work};
use forebay_client::{Keeper, Pool, PoolConfig, node_dir, remove_node};
use forebay_media::{MediumKind, MediumSpec};
use forebay_placement::map::{Medium, MediumKind as Kind};
use forebay_placement::{Node, NodeId, PoolMap, State};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a host has for its node.
pub struct Host {
    /// The media of the node, or why there are none.
    pub media: Result<Vec<MediumSpec>, String>,
    /// Where it listens, or why nowhere.
    pub listen: Result<Vec<IpAddr>, String>,
    /// Is told what is about to be made: who removes it if this process is killed.
    pub heir: Box<dyn FnMut(&PoolConfig) + Send>,
}

/// The node.
pub struct Own {
    begin: Begin,
    host: Host,
    made: Option<Made>,
}

struct Made {
    config: PoolConfig,
    keeper: Keeper,
}

impl Own {
    /// The node that `begin` says, on this host.
    pub fn new(begin: Begin, host: Host) -> Own {
        Own {
            begin,
            host,
            made: None,
        }
    }

    /// Its directory.
    pub fn dir(&self) -> PathBuf {
        node_dir(&self.begin.plan.name, self.begin.me)
    }

    /// Its keeper, if its part in the start was done.
    pub fn into_keeper(self) -> Option<Keeper> {
        self.made.map(|m| m.keeper)
    }

    fn make(&mut self, config: &PoolConfig) -> Result<Keeper, String> {
        Pool::create_node(config, &self.begin.key.0[..]).map_err(|e| e.to_string())?;
        self.begin_to_keep().inspect_err(|_| remove_node(config))
    }

    fn begin_to_keep(&self) -> Result<Keeper, String> {
        let dir = self.dir();
        let written = self.begin.plan.write(&dir);
        written.map_err(|e| format!("can't write in {}: {e}", dir.display()))?;
        let pool = Pool::open_dir(&dir).map_err(|e| e.to_string())?;
        Keeper::take_charge(Arc::new(pool)).map_err(|e| e.to_string())
    }
}

impl Work for Own {
    fn prepare(&mut self) -> Result<Node, String> {
        let (plan, me) = (&self.begin.plan, self.begin.me);
        let media = self.host.media.clone()?;
        let _listen = self.host.listen.clone()?;
        let config = plan.config(me, media).map_err(|e| e.to_string())?;
        let kind = |m: &MediumSpec| match m.kind {
            MediumKind::Memory => Kind::Memory,
            MediumKind::Files(_) => Kind::Files,
        };
        let media: Vec<Medium> = config
            .media
            .iter()
            .map(|m| Medium {
                kind: kind(m),
                capacity: m.capacity,
            })
            .collect();
        let host = plan.hosts.get(me as usize).map_or("", String::as_str);
        let name = plan.node_name(me, host);
        (self.host.heir)(&config);
        let keeper = self.make(&config)?;
        self.made = Some(Made { config, keeper });
        Ok(Node {
            number: NodeId(me),
            name,
            addresses: Vec::new(),
            state: State::Up,
            since: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            weight: Node::weight_of(&media),
            media,
        })
    }

    fn serve(&mut self, map: Arc<PoolMap>) -> Result<(), String> {
        let (part, file) = (self.dir().join("map.part"), self.dir().join("map"));
        std::fs::write(&part, map.encode())
            .and_then(|()| std::fs::rename(&part, &file))
            .map_err(|e| format!("can't write {}: {e}", file.display()))
    }

    fn remove(self) {
        if let Some(made) = self.made {
            drop(made.keeper);
            remove_node(&made.config);
        }
    }
}
