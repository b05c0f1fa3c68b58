//! Starts a pool of several nodes: `forebay up --nodes`, `--hosts`, or in a Slurm job.

use crate::args::{Media, Nodes};
use crate::fail::Fail;
use crate::output::print_notice;
use crate::peers::at_host;
use crate::{capacity, down, keeper, lifetime, origin, prefix};
use forebay_client::{Pool, PoolError, PoolState, Starting, home, places};
use forebay_media::format_size;
use forebay_placement::{Node, map::MediumKind};
use forebay_pool::Limits;
use forebay_pool::launch::{Begin, How, Key, Listen, Outcome, Plan, launcher, order};
use forebay_pool::start::Missing;
use forebay_staging::{Mover, Team};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;
use zeroize::Zeroizing;

/// Maximum number of daemons that one daemon launches.
const FAN_OUT: u32 = 16;
/// Maximum number of missing nodes that a message names.
const NAMED: usize = 5;

/// Returns the hosts of the wanted nodes and how they are reached; None for a pool of one node, on
/// this host.
pub fn wanted(a: &Nodes) -> Result<Option<(Vec<String>, How)>, Fail> {
    if a.mpi {
        return Err(Fail::usage(
            "--mpi is for `forebay up`, which starts the pool for all programs of the job",
        ));
    }
    if a.nodes == Some(1) {
        return Ok(None);
    }
    if let Some(nodes) = a.nodes {
        let host = this_host();
        return Ok(Some((vec![host; nodes as usize], How::Local)));
    }
    if !a.hosts.is_empty() {
        let hosts: Vec<String> = a.hosts.iter().map(|h| h.trim().to_owned()).collect();
        // A word that begins with `-` would be an option of the remote shell.
        if let Some(bad) = hosts.iter().find(|h| {
            h.is_empty()
                || h.starts_with('-')
                || h.chars().any(|c| c.is_whitespace() || c.is_control())
        }) {
            return Err(Fail::usage(format!(
                "--hosts: '{bad}' is no host; write names with commas between them: n1,n2,n3"
            )));
        }
        return Ok(Some((hosts, How::Rsh(a.rsh.clone()))));
    }
    slurm()
}

/// Returns the name of this host.
pub fn this_host() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// Returns the nodes of the Slurm job that this process is in; None if there is only one.
fn slurm() -> Result<Option<(Vec<String>, How)>, Fail> {
    let variable = |v: &str| std::env::var(v).ok().filter(|t| !t.is_empty());
    let (Some(_), Some(list)) = (variable("SLURM_JOB_ID"), variable("SLURM_JOB_NODELIST")) else {
        return Ok(None);
    };
    let size = variable("SLURM_HET_SIZE").and_then(|n| n.parse::<u32>().ok());
    let lists: Vec<String> = match size {
        Some(size) => (0..size)
            .filter_map(|n| variable(&format!("SLURM_JOB_NODELIST_HET_GROUP_{n}")))
            .collect(),
        None => vec![list],
    };
    let tasks = variable("SLURM_STEP_NUM_TASKS").and_then(|t| t.parse::<u32>().ok());
    if tasks.is_some_and(|n| n > 1) {
        return Err(Fail::usage(
            "this is one of several tasks of srun, and each would start the same pool; call it once, in the batch script, or say --nodes 1 for a pool on this node alone",
        ));
    }
    let components: Vec<Vec<String>> = lists
        .iter()
        .map(|list| slurm_hosts(list))
        .collect::<Result<_, _>>()?;
    let hosts = components.concat();
    let components = size.map_or(Vec::new(), |_| components);
    Ok((hosts.len() > 1).then_some((hosts, How::Srun { components })))
}

/// Expands a list of hosts as Slurm writes it: `n[1-3],m7`.
fn slurm_hosts(list: &str) -> Result<Vec<String>, Fail> {
    let failed = |why: String| {
        Fail::failed(format!(
            "can't find out the nodes of this Slurm job ({list}): scontrol: {why}; name them with --hosts, or say --nodes 1"
        ))
    };
    let output = Command::new("scontrol")
        .args(["show", "hostnames", list])
        .output()
        .map_err(|e| failed(e.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let hosts: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    if !output.status.success() || hosts.is_empty() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(failed(
            words.lines().next_back().unwrap_or("no names").to_owned(),
        ));
    }
    Ok(hosts)
}

fn limits(a: &Nodes) -> Limits {
    Limits {
        cpus: a.cpus.clone(),
        memory: a.memory,
        bandwidth: a.bandwidth,
    }
}

/// Whether all daemons are on this host, as far as is known.
fn plan_is_local(how: &How, hosts: &[String]) -> bool {
    let here = this_host();
    match how {
        How::Local => true,
        How::Ranks { .. } => hosts.iter().all(|h| *h == here),
        _ => false,
    }
}

/// Warns that limits have no effect in a pool of one node.
pub fn warn_of_limits(a: &Nodes) {
    if limits(a).any() {
        print_notice(
            "warning: --cpus, --memory and --bandwidth are for daemons that serve other nodes; a pool of one node has none",
        );
    }
}

/// Starts the pool; returns its nodes.
pub fn start(
    name: &str,
    media: &Media,
    a: &Nodes,
    (hosts, how): (Vec<String>, How),
) -> Result<(Plan, Vec<Node>), Fail> {
    let limits = limits(a);
    limits.check(a.request_timeout).map_err(Fail::usage)?;
    let (origin, mount) = media
        .origin
        .wanted(media.mount.as_deref(), prefix::wanted(media))?;
    let (mount, warning) = prefix::check(&mount, &media.media)?;
    let warning = warning.filter(|_| origin.as_ref().is_none_or(|o| o.path != mount));
    let _starting = Starting::begin(name)?;
    absent(name)?;
    let mut warnings: Vec<String> = warning.into_iter().collect();
    let mut each = media.media.clone();
    if how == How::Local {
        // The default media are chosen here for all nodes: daemons that read the free memory one
        // after the other would see different amounts.
        if each.is_empty() {
            each = capacity::default_media_of(hosts.len() as u32)?.0;
        }
        warnings.extend(capacity::check(&each, hosts.len(), media.force)?);
    }
    warnings
        .iter()
        .for_each(|w| print_notice(format!("warning: {w}")));
    let listen = a.listen.unwrap_or(match how {
        _ if plan_is_local(&how, &hosts) => Listen::Loopback,
        _ => Listen::All,
    });
    let home = std::env::var_os("FOREBAY_HOME").filter(|h| !h.is_empty());
    let rules =
        crate::rule_file::read_for(media.rules.as_deref(), &mount, &each, origin.is_some())?;
    let plan = Plan {
        forebay: env!("CARGO_PKG_VERSION").into(),
        name: name.to_owned(),
        uuid: random::<16>()?.iter().map(|b| format!("{b:02x}")).collect(),
        mount,
        media: each,
        reserve: media.reserve,
        force: media.force,
        rules,
        origin,
        hosts,
        how,
        executable: executable()?,
        fan_out: FAN_OUT,
        home: home.map(|_| std::path::absolute(self::home()).unwrap_or_else(|_| self::home())),
        listen,
        encrypt: a.encrypt,
        request_timeout: Duration::from_secs_f64(a.request_timeout),
        lease: Duration::from_secs_f64(a.lease),
        within: Duration::from_secs_f64(a.within),
        limits,
        lifetime: lifetime::of_new(media.ttl, media.idle, &media.media),
        of_job: keeper::is_in_job(),
    };
    let begin = Begin {
        me: 0,
        key: Key(random::<32>()?),
        plan,
    };
    match order(&begin, &*launcher(&begin.plan)) {
        Outcome::Running(nodes) => {
            if begin.plan.origin.is_some()
                && let Err(fail) = origin::is_ready(name)
            {
                down::remove_plan(&begin.plan);
                return Err(fail);
            }
            Ok((begin.plan, nodes))
        }
        Outcome::Failed(missing) => {
            // All daemons have cleaned up, except for node 0 if it was killed just before.
            down::remove_plan(&begin.plan);
            Err(Fail::failed(format!(
                "the pool '{name}' can't start: {}; nothing of it is left",
                words(&begin.plan, &missing)
            )))
        }
    }
}

/// Describes the missing nodes, with reasons.
fn words(plan: &Plan, missing: &[Missing]) -> String {
    let name = |m: &Missing| {
        let host = plan.hosts.get(m.node as usize).map_or("?", String::as_str);
        let below = match m.below {
            0 => String::new(),
            n => format!(", and {n} that it was to start"),
        };
        format!("node {} on {host}{below}: {}", m.node, m.why)
    };
    let mut list: Vec<String> = missing.iter().take(NAMED).map(name).collect();
    if missing.len() > NAMED {
        list.push(format!("and {} more nodes", missing.len() - NAMED));
    }
    list.join("; ")
}

fn absent(name: &str) -> Result<(), Fail> {
    match Pool::state(name) {
        PoolState::Absent => Ok(()),
        PoolState::Running => Err(PoolError::Exists(name.to_owned()).into()),
        PoolState::Stale => Err(PoolError::ExistsStale(name.to_owned()).into()),
        PoolState::Unknown(why) => Err(Fail::failed(format!(
            "the pool '{name}' can't be looked at, so nothing was done: {why}"
        ))),
        PoolState::Damaged(why) => Err(PoolError::Damaged {
            name: name.to_owned(),
            why,
        }
        .into()),
    }
}

/// Returns `N` random bytes.
pub fn random<const N: usize>() -> Result<Zeroizing<[u8; N]>, Fail> {
    let mut bytes = Zeroizing::new([0; N]);
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(n) if n == N => Ok(bytes),
        _ => Err(Fail::failed(
            "no random numbers can be had: getrandom failed",
        )),
    }
}

fn executable() -> Result<PathBuf, Fail> {
    std::env::current_exe()
        .map_err(|e| Fail::failed(format!("can't find the path of this program: {e}")))
}

/// Returns a node's description as JSON, for programs.
pub fn as_json(node: &Node) -> serde_json::Value {
    let addresses = node
        .addresses
        .iter()
        .map(|a| SocketAddr::from(*a).to_string());
    serde_json::json!({
        "node": node.number.0, "name": node.name, "addresses": addresses.collect::<Vec<_>>(),
        "capacity": capacity(std::slice::from_ref(node)),
    })
}

/// Returns the sum of the nodes' capacities. Bytes.
pub fn capacity(nodes: &[Node]) -> u64 {
    let media = nodes.iter().flat_map(|n| &n.media);
    media.map(|m| m.capacity).sum()
}

/// Describes the nodes in words: `4 nodes, each with memory:1.0 GiB (4.0 GiB)`.
pub fn describe(plan: &Plan, nodes: &[Node]) -> String {
    let media = if plan.media.is_empty() {
        let same = nodes.windows(2).all(|n| n[0].media == n[1].media);
        let list: Vec<String> = nodes
            .first()
            .map_or(&[][..], |n| &n.media[..])
            .iter()
            .map(|m| {
                let kind = match m.kind {
                    MediumKind::Memory => "memory",
                    MediumKind::Files => "files",
                };
                if same {
                    format!("{kind}:{}", format_size(m.capacity))
                } else {
                    kind.into()
                }
            })
            .collect();
        list.join(", ")
    } else {
        let list: Vec<String> = plan.media.iter().map(ToString::to_string).collect();
        list.join(", ")
    };
    let count = crate::output::count(nodes.len() as u64, "node");
    format!(
        "{count}, each with {media} ({})",
        format_size(capacity(nodes))
    )
}

/// Returns the helper processes by which a pool's other nodes take part in staging.
pub fn team(pool: &Pool) -> Team {
    let (Some(member), Ok(plan)) = (pool.config().member, Plan::read(pool.dir())) else {
        return Team::default();
    };
    let here: BTreeSet<u32> = places(&plan.name).iter().filter_map(|p| p.node).collect();
    let mover = |(node, host): (u32, &String)| {
        let arguments = ["mover", "--pool", &plan.name, "--node", &node.to_string()];
        let command = if here.contains(&node) {
            let itself = executable().unwrap_or_else(|_| plan.executable.clone());
            let mut command = Command::new(itself);
            command.args(arguments).env_remove("LD_PRELOAD");
            command
        } else {
            at_host(&plan, host, &arguments)
        };
        Mover {
            node,
            name: plan.node_name(node, host),
            command,
        }
    };
    let others = (0..).zip(&plan.hosts).filter(|(n, _)| *n != member.node);
    Team {
        me: member.node,
        movers: Mutex::new(others.map(mover).collect()),
    }
}
