//! The arguments of the commands that start and remove pools.

use crate::lifetime::Span;
use crate::origin_args::Origin;
use clap::Args;
use forebay_media::MediumSpec;
use forebay_pool::launch::Listen;
use forebay_pool::limits::Cpus;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct Media {
    /// memory:SIZE or files:DIRECTORY:SIZE; repeatable, fastest first
    #[arg(help_heading = "Media", long = "media", value_name = "MEDIUM")]
    pub media: Vec<MediumSpec>,
    /// Prefix under which programs see the pool [default: /fb; with --origin DIR: DIR]
    #[arg(help_heading = "Media", long, value_name = "PREFIX")]
    pub mount: Option<String>,
    #[command(flatten, next_help_heading = "Origin")]
    pub origin: Origin,
    /// Room kept ready in each medium beyond the room in use, so that writing is fast at once
    /// [default: 256M; at most an eighth of the medium]
    #[arg(help_heading = "Media", long, value_name = "SIZE", value_parser = forebay_media::parse_size)]
    pub reserve: Option<u64>,
    /// File of rules that declare the needs of I/O by path (see: forebay rules --help)
    #[arg(help_heading = "Rules and limits", long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Continue even if the pool is larger than the host can hold, or, with run, if the files to be
    /// staged in need more room than the pool has
    #[arg(help_heading = "Rules and limits", long)]
    pub force: bool,
    /// Remove the pool after this time (2h, 90m, 1d), or later as soon as it isn't used; none:
    /// never [default: in a Slurm job its end, for pools with memory; else none]
    #[arg(help_heading = "Lifetime", long, value_name = "TIME")]
    pub ttl: Option<Span>,
    /// Remove the pool when it hasn't been used for this time (30m) [default: none]
    #[arg(help_heading = "Lifetime", long, value_name = "TIME")]
    pub idle: Option<Span>,
}

/// The nodes of a pool.
#[derive(Debug, Args)]
pub struct Nodes {
    /// Number of nodes, all on this host: for trying and testing
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub nodes: Option<u32>,
    /// A node on each of these hosts
    #[arg(
        long,
        value_name = "HOST,...",
        value_delimiter = ',',
        conflicts_with = "nodes"
    )]
    pub hosts: Vec<String>,
    /// A node for each rank of the MPI launcher that starts this command: mpiexec -ppn 1 forebay up
    /// --mpi
    #[arg(long, conflicts_with_all = ["nodes", "hosts"])]
    pub mpi: bool,
    /// Remote shell that starts the daemons on the hosts
    #[arg(
        long,
        value_name = "PROGRAM",
        env = "FOREBAY_RSH",
        default_value = "ssh"
    )]
    pub rsh: String,
    /// Where daemons listen for each other: addresses of this network
    /// [default: all but loopback; with --nodes: loopback]
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    pub listen: Option<Listen>,
    /// Encrypt the contents of files between nodes, too; all other messages are always encrypted
    #[arg(long)]
    pub encrypt: bool,
    /// How long a program waits for a node that doesn't answer, before it gets an error
    #[arg(long, value_name = "SECONDS", alias = "patience", default_value_t = 10.0, value_parser = seconds)]
    pub request_timeout: f64,
    /// Time after which a node that can't be reached loses its programs' locks on files of other
    /// nodes. The programs then get EIO for these files until they close them
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub lease: f64,
    /// Cores for each daemon: how many, or a list such as 0-3,8 [default: all]
    #[arg(long, value_name = "N|LIST")]
    pub cpus: Option<Cpus>,
    /// Memory of each daemon itself, besides the media [default: up to about 600M under load]
    #[arg(long, value_name = "SIZE", value_parser = forebay_media::parse_size)]
    pub memory: Option<u64>,
    /// Bytes per second that each node may send to others, and receive [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub bandwidth: Option<u64>,
    /// How long all nodes may take to start
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub within: f64,
}

/// Parses the seconds of a time limit.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if (0.1..=86_400.0).contains(&seconds) {
        return Ok(seconds);
    }
    Err("must be between 0.1 and 86400 seconds".into())
}

/// Parses bytes per second, with or without `/s`.
fn rate(text: &str) -> Result<u64, String> {
    forebay_media::parse_size(text.strip_suffix("/s").unwrap_or(text))
}

#[derive(Debug, Args)]
pub struct Up {
    #[command(flatten)]
    pub media: Media,
    #[command(flatten, next_help_heading = "Nodes")]
    pub nodes: Nodes,
    /// Continue with a pool whose keeper has died
    #[arg(help_heading = "Reopening", long, conflicts_with_all = ["media", "nodes", "hosts", "mpi", "ttl", "idle"])]
    pub reopen: bool,
    /// With --reopen, after a reboot: the directory of the pool's `files` medium
    #[arg(
        help_heading = "Reopening",
        long,
        value_name = "DIR",
        requires = "reopen"
    )]
    pub from: Option<PathBuf>,
    /// Print the started pool as JSON
    #[arg(help_heading = "Form", long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Down {
    /// Don't print a summary of the work in the pool
    #[arg(long, short)]
    pub quiet: bool,
    /// End processes that use the pool; it's no error if there is no pool
    #[arg(long)]
    pub force: bool,
    /// Remove only the part on this host
    #[arg(long, hide = true)]
    pub here: bool,
    /// Only report whether the pool is in use
    #[arg(long, hide = true)]
    pub check: bool,
    /// Only if the pool hasn't been used for this many seconds
    #[arg(long, hide = true)]
    pub unused: Option<u64>,
    /// Ignore this process: it removes its own pool, of which it has memory mapped
    #[arg(long, hide = true, value_name = "PID", conflicts_with = "force")]
    pub besides: Option<u32>,
}
