//! A node's own part in the start of its pool: makes its store, starts its keeper and daemon, and
//! serves once it has the map.

use super::{Begin, How, Plan, Work};
use crate::daemon::{self, Daemon, read_map};
use crate::{Error, limits};
use forebay_client::{Keeper, Pool, PoolConfig, PoolError, check_host, node_dir, remove_node};
use forebay_media::{MediumKind, MediumSpec};
use forebay_placement::map::{Address, MAX_ADDRESSES, Medium, MediumKind as Kind};
use forebay_placement::{Node, NodeId, PoolMap, State};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a daemon that was restarted waits until the other nodes know of it.
const ANNOUNCE: Duration = Duration::from_secs(1);

/// Resources of the host that a node uses.
pub struct Host {
    /// The media of the node, or why there are none.
    pub media: Result<Vec<MediumSpec>, Error>,
    /// The addresses to listen on, or why there are none.
    pub listen: Result<Vec<IpAddr>, Error>,
    /// Arranges that another process removes the node if this process is killed. Called before the
    /// node is made.
    pub heir: Box<dyn FnMut(&PoolConfig) + Send>,
    /// Ends the arrangement of `heir`: from now on the node isn't removed if this process is
    /// killed. Called when the node serves.
    pub settled: Box<dyn FnMut() + Send>,
}

/// The work of starting a node.
pub struct Own {
    begin: Begin,
    host: Host,
    made: Option<Made>,
}

struct Made {
    config: PoolConfig,
    running: Running,
}

/// A node that serves.
pub struct Running {
    keeper: Keeper,
    daemon: Daemon,
    /// The cores to which the daemon's threads are bound; None: all.
    cores: Option<Vec<usize>>,
}

impl Running {
    /// Opens the existing node in `dir`, listens for it, and becomes its keeper.
    fn begin(dir: &Path, plan: &Plan, listen: Vec<IpAddr>) -> Result<Running, PoolError> {
        let me = PoolConfig::read(dir)?.member.map_or(0, |m| m.node);
        let cores = plan.cores(me)?;
        let mut options = daemon::Options {
            limits: plan.limits.clone(),
            cores: cores.as_ref().map(Vec::len),
            listen,
            encrypt: plan.encrypt,
            request_timeout: plan.request_timeout,
            gone_after: plan.lease,
            ..daemon::Options::default()
        };
        options.listen.truncate(MAX_ADDRESSES);
        let daemon = Daemon::listen(dir, options)?;
        let pool = match daemon.pool() {
            Some(pool) => pool.clone(),
            None => Arc::new(Pool::open_dir(dir)?),
        };
        let keeper = Keeper::take_charge(pool)?;
        Ok(Running {
            keeper,
            daemon,
            cores,
        })
    }

    /// Restarts the daemon of the node in `dir`. The node's last daemon has ended. The daemon
    /// listens on those of the host's addresses `own` that the pool's plan allows.
    ///
    /// # Errors
    /// [`PoolError`] if the start of the node's pool was never completed, or if the node has a
    /// daemon already or can't be opened.
    pub fn again(dir: &Path, own: &[IpAddr]) -> Result<Running, PoolError> {
        let damaged = |why: String| PoolError::Damaged {
            name: PoolConfig::read(dir).map_or_else(|_| "?".into(), |c| c.name),
            why,
        };
        let plan = Plan::read(dir).map_err(|e| damaged(format!("plan.json: {e}")))?;
        let map = read_map(dir).ok_or_else(|| damaged("it has no map".into()))?;
        let running = Running::begin(dir, &plan, plan.listen.pick(own))?;
        running.serve(Arc::new(map))?;
        running.daemon.wait_announced(ANNOUNCE);
        Ok(running)
    }

    /// The pool whose keeper this process is.
    pub fn pool(&self) -> &Arc<Pool> {
        self.keeper.pool()
    }

    /// Begins to serve. Binds the daemon's threads to its cores before other nodes learn that it
    /// serves, and after this process has launched the nodes below it, which choose their own
    /// cores.
    fn serve(&self, map: Arc<PoolMap>) -> Result<(), PoolError> {
        if let Some(cores) = &self.cores {
            limits::bind(cores)?;
        }
        self.daemon.serve(map)?;
        Ok(())
    }

    /// Runs the keeper and the daemon of the node until the node is removed.
    ///
    /// # Errors
    /// If the pool's journal can't be continued.
    pub fn run(self) -> Result<(), PoolError> {
        let ended = self.keeper.run();
        drop(self.daemon);
        ended
    }
}

impl Own {
    /// The work of starting the node in `begin` on this host.
    pub fn new(begin: Begin, host: Host) -> Own {
        Own {
            begin,
            host,
            made: None,
        }
    }

    /// The node's directory.
    pub fn dir(&self) -> PathBuf {
        node_dir(&self.begin.plan.name, self.begin.me)
    }

    /// The running node, if its part in the start was completed.
    pub fn into_running(self) -> Option<Running> {
        self.made.map(|m| m.running)
    }

    fn make(&mut self, config: &PoolConfig, listen: Vec<IpAddr>) -> Result<Running, Error> {
        // If all nodes are on one host, the caller of the start has checked the host's room.
        if !self.begin.plan.force && self.begin.plan.how != How::Local {
            check_host(&config.media, 1).map_err(Error::Host)?;
        }
        Pool::create_node(config, &self.begin.key.0[..])?;
        let (dir, plan) = (self.dir(), &self.begin.plan);
        let written = plan.write(&dir);
        written
            .map_err(|e| Error::Host(format!("can't write in {}: {e}", dir.display())))
            .and_then(|()| Ok(Running::begin(&dir, plan, listen)?))
            .inspect_err(|_| remove_node(config))
    }
}

impl Work for Own {
    fn prepare(&mut self) -> Result<Node, Error> {
        let (plan, me) = (&self.begin.plan, self.begin.me);
        let media = self.host.media.clone()?;
        let listen = self.host.listen.clone()?;
        let config = plan.config(me, media)?;
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
        let running = self.make(&config, listen)?;
        let addresses = running.daemon.addresses();
        self.made = Some(Made { config, running });
        Ok(Node {
            number: NodeId(me),
            name,
            addresses: addresses
                .iter()
                .map(|a| Address {
                    ip: a.ip(),
                    port: a.port(),
                })
                .collect(),
            state: State::Up,
            since: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            weight: Node::weight_of(&media),
            media,
        })
    }

    fn serve(&mut self, map: Arc<PoolMap>) -> Result<(), Error> {
        match &self.made {
            Some(made) => Ok(made.running.serve(map)?),
            None => Err(Error::NoStore),
        }
    }

    fn settle(&mut self) {
        (self.host.settled)();
    }

    fn remove(self) {
        if let Some(made) = self.made {
            drop(made.running);
            remove_node(&made.config);
        }
    }
}
