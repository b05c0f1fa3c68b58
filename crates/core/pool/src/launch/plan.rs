//! The plan of a pool: all parameters that daemons get when they are launched, except the key.

use crate::limits::{self, Limits};
use crate::{Error, Tree};
use forebay_client::controls::Rules;
use forebay_client::origin::OriginConfig;
use forebay_client::{CreateOptions, Lifetime, Member, PoolConfig, PoolError};
use forebay_media::MediumSpec;
use forebay_placement::map::{MAX_NAME, MAX_NODES};
use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How daemons are launched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// As child processes: all nodes are on this host.
    Local,
    /// By a remote shell (ssh or similar), called as `PROGRAM HOST COMMAND`.
    Rsh(String),
    /// By srun, as steps of this Slurm job. srun runs as long as the daemon does.
    Srun {
        /// For a heterogeneous job: the hosts of each component. Empty for other jobs.
        components: Vec<Vec<String>>,
    },
    /// By the ranks of an MPI launcher, which wait to be called.
    Ranks {
        /// The remote shell for restarts.
        rsh: String,
        /// Where each rank waits to be called: addresses, separated by commas.
        reach: Vec<String>,
        /// Authenticates the caller, in this start only.
        key: OneTime,
    },
}

/// A key for one start: 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneTime(pub String);

impl std::fmt::Debug for OneTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OneTime(not shown)")
    }
}

/// The addresses of a host on which its daemons listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Listen {
    /// Loopback: reachable from this host only.
    Loopback,
    /// The addresses of all interfaces that are up, except loopback.
    All,
    /// The addresses in this network: address and prefix length.
    Network(IpAddr, u8),
}

impl Listen {
    /// Chooses the addresses on which daemons listen out of the host's addresses `own`.
    pub fn pick(&self, own: &[IpAddr]) -> Vec<IpAddr> {
        let bits = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => u128::from(u32::from(ip)) << 96,
            IpAddr::V6(ip) => u128::from(ip),
        };
        let fits = |ip: &&IpAddr| match *self {
            Listen::Loopback => ip.is_loopback(),
            Listen::All => !ip.is_loopback(),
            Listen::Network(net, length) => {
                let differ = bits(**ip) ^ bits(net);
                ip.is_ipv4() == net.is_ipv4() && differ.leading_zeros() >= u32::from(length)
            }
        };
        let mut picked: Vec<IpAddr> = own.iter().filter(fits).copied().collect();
        if *self == Listen::Loopback {
            picked.truncate(1);
        }
        picked
    }
}

/// Parses `10.0.0.0/8`, or a single address.
impl std::str::FromStr for Listen {
    type Err = Error;

    fn from_str(text: &str) -> Result<Listen, Error> {
        let bad = || Error::NoNetwork(text.to_owned());
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u8>().map_err(|_| bad())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.unwrap_or(most);
        (length <= most)
            .then_some(Listen::Network(address, length))
            .ok_or_else(bad)
    }
}

/// A pool of several nodes, as requested by `up`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The version of Forebay that starts the pool.
    pub forebay: String,
    /// The pool's name.
    pub name: String,
    /// The pool's identity: 32 hexadecimal digits.
    pub uuid: String,
    /// Prefix under which programs see the pool.
    pub mount: String,
    /// The media of each node. Empty: each node chooses its media by its host's resources.
    pub media: Vec<MediumSpec>,
    /// Maximum room kept ready in each medium. Bytes.
    pub reserve: Option<u64>,
    /// Whether media may be larger than their host allows.
    #[serde(default)]
    pub force: bool,
    /// Controls of new objects, by path.
    #[serde(default)]
    pub rules: Rules,
    /// The slow store behind the pool, as node 0 sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginConfig>,
    /// The host of each node, by its number.
    pub hosts: Vec<String>,
    /// How the daemons are launched.
    pub how: How,
    /// Path of this program, the same on all hosts.
    pub executable: PathBuf,
    /// Maximum number of daemons that one daemon launches.
    pub fan_out: u32,
    /// Directory of all pools; None: the default.
    pub home: Option<PathBuf>,
    /// Addresses on which daemons listen.
    pub listen: Listen,
    /// Whether the contents of files are encrypted on the network, too.
    pub encrypt: bool,
    /// Request timeout: a node that sends no reply for this time counts as down.
    pub request_timeout: Duration,
    /// How long a node may be out of reach before it loses its locks.
    #[serde(default = "lease")]
    pub lease: Duration,
    /// Maximum duration of the start.
    pub within: Duration,
    /// Limits on each daemon's use of its host.
    #[serde(default)]
    pub limits: Limits,
    /// How long the pool may live. Each node counts the time from its own start.
    #[serde(default)]
    pub lifetime: Lifetime,
    /// Whether the process that starts the pool belongs to a batch job.
    #[serde(default)]
    pub of_job: bool,
}

fn lease() -> Duration {
    crate::daemon::Options::default().gone_after
}

impl Plan {
    /// The tree of the start.
    pub fn tree(&self) -> Tree {
        Tree::new(self.hosts.len() as u32, self.fan_out)
    }

    /// Number of nodes on the host of node `n`, itself included.
    pub fn neighbours(&self, n: u32) -> u32 {
        let host = self.hosts.get(n as usize);
        self.hosts.iter().filter(|h| Some(*h) == host).count() as u32
    }

    /// The cores of the daemon of node `n`; None if they aren't limited. Must be called on the
    /// node's host.
    ///
    /// # Errors
    /// [`Error::AbsentCore`] if the node's host doesn't have these cores.
    pub fn cores(&self, n: u32) -> Result<Option<Vec<usize>>, Error> {
        let host = self.hosts.get(n as usize);
        let before = self.hosts.iter().take(n as usize);
        let index = before.filter(|h| Some(*h) == host).count();
        let all = limits::cores();
        self.limits
            .cpus
            .as_ref()
            .map(|c| c.pick(&all, index))
            .transpose()
    }

    /// The name of node `n` for users: its host's, with its number if the host has several nodes.
    pub fn node_name(&self, n: u32, host: &str) -> String {
        let mut name = if self.neighbours(n) > 1 {
            format!("{host}/{n}")
        } else {
            host.to_owned()
        };
        name.retain(|c| !c.is_control());
        while name.len() > MAX_NAME {
            name.pop();
        }
        name
    }

    /// The pool's identity as bytes; None if it is malformed.
    pub fn pool(&self) -> Option<[u8; 16]> {
        let mut bytes = [0; 16];
        if self.uuid.len() != 32 || !self.uuid.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&self.uuid[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(bytes)
    }

    /// Why this can't be a plan that node `me` is part of; None if it can.
    pub(crate) fn check(&self, me: u32) -> Option<&'static str> {
        let count = self.hosts.len();
        let sound = (1..=MAX_NODES).contains(&count)
            && (me as usize) < count
            && self.pool().is_some()
            && forebay_client::check_name(&self.name).is_ok()
            && self.fan_out > 0;
        (!sound).then_some("the plan is impossible")
    }

    /// The configuration of node `n`, with these media.
    ///
    /// # Errors
    /// [`PoolError::Invalid`] if the name, the mount prefix or the media can't be used.
    pub fn config(&self, n: u32, media: Vec<MediumSpec>) -> Result<PoolConfig, PoolError> {
        let options = CreateOptions {
            name: self.name.clone(),
            mount: self.mount.clone(),
            media,
            reserve: self.reserve,
            rules: self.rules.clone(),
            origin: self.origin.clone(),
        };
        let nodes = self.hosts.len() as u32;
        let mut config = PoolConfig::of_node(&options, &self.uuid, Member { node: n, nodes })?;
        config.lifetime = self.lifetime.begun();
        Ok(config)
    }

    /// Writes the plan to a node's directory, for restarts of the daemon.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn write(&self, dir: &Path) -> std::io::Result<()> {
        let mut plan = self.clone();
        if let How::Ranks { rsh, .. } = &self.how {
            // When a daemon is restarted, the ranks have ended, so a restart uses the remote shell.
            plan.how = How::Rsh(rsh.clone());
        }
        forebay_client::write_kept(dir, "plan.json", &serde_json::to_vec(&plan)?)
    }

    /// Reads the plan from a node's directory.
    ///
    /// # Errors
    /// If the file is missing or malformed, or if others could have written it: the file names
    /// programs to be executed.
    pub fn read(dir: &Path) -> std::io::Result<Plan> {
        use forebay_client::private::{Above, check};
        check(dir, Above::Strict).map_err(std::io::Error::other)?;
        let text = untrusted::read(&dir.join("plan.json"), Links::Refuse, MAX_SETTINGS)?;
        let plan: Plan = serde_json::from_slice(&text)?;
        match plan.check(0) {
            None => Ok(plan),
            Some(why) => Err(std::io::Error::other(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_addresses() {
        let own: Vec<IpAddr> = ["127.0.0.1", "10.1.2.3", "192.168.0.1", "::1", "fd00::5"]
            .map(|a| a.parse().unwrap())
            .to_vec();
        let pick = |text: &str| text.parse::<Listen>().unwrap().pick(&own);
        assert_eq!(pick("10.0.0.0/8"), own[1..2]);
        assert_eq!(pick("0.0.0.0/0"), own[..3]);
        assert_eq!(pick("fd00::/16"), own[4..]);
        assert_eq!(pick("192.168.0.1"), own[2..3]);
        assert!(pick("192.168.0.2").is_empty());
        assert_eq!(Listen::Loopback.pick(&own), own[..1]);
        assert_eq!(Listen::All.pick(&own), [own[1], own[2], own[4]]);
        for bad in ["", "10.0.0.0/33", "x/8", "10.0.0.0/", "::/129"] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }
}
