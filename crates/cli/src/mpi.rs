//! `mpiexec -ppn 1 forebay up --mpi`: starts a node of the pool for each rank, without remote
//! shells.
//!
//! Each rank publishes its addresses through the launcher (PMI), and rank 0 a key for this one
//! start. Rank 0 then starts the pool as without MPI, except for one step. Where a daemon would
//! launch another daemon by a remote shell, it calls the rank on that daemon's host ([`reach`]).
//! That rank starts the daemon and relays between both ([`serve`]). When the pool runs, all ranks
//! end.

use crate::args::Up;
use crate::fail::{Fail, code};
use crate::pmi::Pmi;
use crate::{addresses, exec, nodes, up};
use forebay_net::pipe::{self, PipeReader, PipeWriter};
use forebay_net::{NodeId, PoolKey};
use forebay_pool::launch::{How, Listen, OneTime};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The environment variable that passes the key and a rank's addresses to [`reach`]; a command line
/// would show the key to other users.
use forebay_pool::launch::launcher::REACH;

/// How long a caller may take to prove that it holds the key.
const PROVES: Duration = Duration::from_secs(1);
/// Maximum number of addresses that a rank publishes.
const ADDRESSES: usize = 8;

fn number(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// Starts the pool `name`. All ranks call this.
pub fn up(name: &str, a: &Up) -> Result<u8, Fail> {
    let began = Instant::now();
    let within = Duration::from_secs_f64(a.nodes.within);
    let lost = |e: std::io::Error| Fail::failed(format!("mpiexec can't be talked to: {e}"));
    match Pmi::find(within) {
        Some(Ok(pmi)) if pmi.ranks == 1 => {
            pmi.end().map_err(lost)?;
            up::one(name, a, began)
        }
        Some(Ok(pmi)) if pmi.rank == 0 => first(name, a, began, pmi),
        Some(Ok(pmi)) => another(name, a, within, pmi),
        Some(Err(e)) => Err(lost(e)),
        None => without_pmi(name, a, began),
    }
}

/// Runs as rank 0: starts the pool on all ranks.
fn first(name: &str, a: &Up, began: Instant, mut pmi: Pmi) -> Result<u8, Fail> {
    let lost = |e: std::io::Error| Fail::failed(format!("mpiexec can't be talked to: {e}"));
    let bytes = nodes::random::<32>()?;
    let key: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    pmi.put("forebay-0", &key)
        .and_then(|()| pmi.meet())
        .map_err(lost)?;
    let (mut hosts, mut reach) = (vec![nodes::this_host()], vec![String::new()]);
    for rank in 1..pmi.ranks {
        let published = pmi.get(&format!("forebay-{rank}")).map_err(lost)?;
        let (host, addresses) = published.split_once(';').unwrap_or((&published, ""));
        hosts.push(host.to_owned());
        reach.push(addresses.to_owned());
    }
    let rsh = a.nodes.rsh.clone();
    let key = OneTime(key);
    let how = How::Ranks { rsh, reach, key };
    // If the start fails, the launcher ends the other ranks, which wait at `end`.
    let done = up::up_nodes(name, a, (hosts, how), began)?;
    pmi.end().map_err(lost)?;
    Ok(done)
}

/// Runs as a rank other than 0: waits for a call, and starts this host's daemon.
fn another(name: &str, a: &Up, within: Duration, mut pmi: Pmi) -> Result<u8, Fail> {
    let lost = |e: std::io::Error| Fail::failed(format!("mpiexec can't be talked to: {e}"));
    let failed = |e: std::io::Error| Fail::failed(format!("can't listen for rank 0: {e}"));
    let any: [SocketAddr; 2] = [
        (Ipv6Addr::UNSPECIFIED, 0).into(),
        (Ipv4Addr::UNSPECIFIED, 0).into(),
    ];
    let listener = TcpListener::bind(&any[..]).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let all = addresses::own();
    let mut own = match a.nodes.listen {
        Some(listen) => listen.pick(&all),
        // Addresses that are valid only on this host come last: on other hosts they lead elsewhere.
        None => {
            let mut own = Listen::All.pick(&all);
            own.truncate(ADDRESSES - 1);
            own.extend(Listen::Loopback.pick(&all));
            own
        }
    };
    own.truncate(ADDRESSES);
    let shown: Vec<String> = own
        .iter()
        .map(|&ip: &IpAddr| SocketAddr::from((ip, port)).to_string())
        .collect();
    let published = format!("{};{}", nodes::this_host(), shown.join(","));
    let key = pmi
        .put(&format!("forebay-{}", pmi.rank), &published)
        .and_then(|()| pmi.meet())
        .and_then(|()| pmi.get("forebay-0"))
        .map_err(lost)?;
    let key = parse_key(&key).ok_or_else(|| Fail::failed("rank 0 has published no key"))?;
    let ended = serve(name, &listener, &key, pmi.rank, Instant::now() + within)?;
    if ended {
        pmi.end().map_err(lost)?;
        Ok(code::OK)
    } else {
        // Rank 0 reports the cause; when it ends, the launcher ends all ranks.
        Ok(code::FAILED)
    }
}

fn parse_key(text: &str) -> Option<PoolKey> {
    let mut bytes = [0; PoolKey::LENGTH];
    if text.len() != 2 * bytes.len() {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(PoolKey::of(bytes))
}

/// Waits for a call, starts the daemon of node `rank`, and relays until the daemon detaches.
/// Returns whether the daemon has started.
fn serve(
    name: &str,
    listener: &TcpListener,
    key: &PoolKey,
    rank: u32,
    until: Instant,
) -> Result<bool, Fail> {
    let failed = |e: std::io::Error| Fail::failed(format!("can't start node {rank}: {e}"));
    let (mut reader, mut writer) = called(listener, key, rank, until)?;
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["keeper", "--launched", "--pool", name, "--node"])
        .arg(rank.to_string())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    exec::without_pool(&mut command);
    let mut child = command.spawn().map_err(failed)?;
    let (Some(mut to), Some(mut from)) = (child.stdin.take(), child.stdout.take()) else {
        return Ok(false);
    };
    let _ = std::thread::Builder::new().spawn(move || {
        // Ends when the caller ends; then the daemon sees the end of its input.
        while let Ok(piece) = reader.next_piece() {
            if piece.is_empty() || to.write_all(&piece).is_err() {
                break;
            }
        }
    });
    let passed = pass(&mut from, &mut writer);
    let _ = writer.finish();
    let status = child.wait().map_err(failed)?;
    Ok(passed && status.success())
}

/// Relays until the input ends. Returns whether all of it was delivered.
fn pass(from: &mut impl Read, to: &mut PipeWriter) -> bool {
    let mut bytes = vec![0; 16 << 10];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return true,
            Ok(n) => {
                if to.send(&bytes[..n]).is_err() {
                    return false;
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}

/// Waits for a caller that holds the key.
fn called(
    listener: &TcpListener,
    key: &PoolKey,
    rank: u32,
    until: Instant,
) -> Result<(PipeReader, PipeWriter), Fail> {
    use rustix::event::{PollFd, PollFlags, poll};
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let wait = rustix::time::Timespec::try_from(left).ok();
        let waited = poll(&mut [PollFd::new(listener, PollFlags::IN)], wait.as_ref());
        if waited == Ok(0) {
            return Err(Fail::failed(format!(
                "rank {rank} wasn't called in time; can rank 0 reach this host?"
            )));
        }
        // Callers that don't prove that they hold the key are ignored.
        if let Ok((socket, _)) = listener.accept()
            && let Ok(pipe) = pipe::answer(socket, key, NodeId(rank), Instant::now() + PROVES)
        {
            return Ok(pipe);
        }
    }
}

/// Runs `forebay reach`, which a daemon launches in place of a remote shell: calls rank `node`,
/// which starts the daemon on its own host, and relays.
pub fn reach(node: u32) -> Result<u8, Fail> {
    let failed = |why: String| Fail::failed(format!("rank {node} can't be reached: {why}"));
    let published = std::env::var(REACH).unwrap_or_default();
    let (key, list) = published.split_once(' ').unwrap_or(("", ""));
    let key = parse_key(key).ok_or_else(|| failed("there is no key".into()))?;
    let addresses: Vec<SocketAddr> = list.split(',').filter_map(|a| a.parse().ok()).collect();
    let until = Instant::now() + Duration::from_secs(10);
    let (mut reader, mut writer) =
        pipe::call(&addresses, &key, NodeId(node), until).map_err(|e| failed(e.to_string()))?;
    let _ = std::thread::Builder::new().spawn(move || {
        if pass(&mut std::io::stdin(), &mut writer) {
            let _ = writer.finish();
        }
    });
    let mut to = std::io::stdout();
    loop {
        let piece = reader.next_piece().map_err(|e| failed(e.to_string()))?;
        if piece.is_empty() {
            return Ok(code::OK);
        }
        let wrote = to.write_all(&piece).and_then(|()| to.flush());
        wrote.map_err(|e| failed(e.to_string()))?;
    }
}

/// Starts the pool under a launcher that doesn't speak PMI-1.
fn without_pmi(name: &str, a: &Up, began: Instant) -> Result<u8, Fail> {
    let (Some(rank), Some(ranks)) = (
        number("OMPI_COMM_WORLD_RANK"),
        number("OMPI_COMM_WORLD_SIZE"),
    ) else {
        return Err(Fail::usage(
            "--mpi: this process wasn't started by an MPI launcher: mpiexec -ppn 1 forebay up --mpi. In a Slurm job, forebay up is enough; elsewhere, name the hosts with --hosts",
        ));
    };
    if number("OMPI_COMM_WORLD_LOCAL_SIZE") != Some(ranks) {
        if rank > 0 {
            return Ok(code::FAILED);
        }
        return Err(Fail::usage(
            "--mpi: Open MPI's ranks can't exchange data without its library, and these are on several hosts; name the hosts: forebay up --hosts n1,n2,... (with --rsh, if it isn't ssh that leads there)",
        ));
    }
    match (rank, ranks) {
        (0, 1) => up::one(name, a, began),
        // All ranks are on this host, so rank 0 starts all nodes.
        (0, _) => {
            let hosts = vec![nodes::this_host(); ranks as usize];
            up::up_nodes(name, a, (hosts, How::Local), began)
        }
        _ => Ok(code::OK),
    }
}
