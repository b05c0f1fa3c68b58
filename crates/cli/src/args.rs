//! The commands and their options.

use crate::campaign_args::{CampaignCommand, Campaignd};
use crate::collection_args::{CollectionCommand, WorkspaceCommand};
use crate::color::Color;
use crate::fail::TABLE;
use crate::file_args::{Df, Find, Ls};
use crate::flow_args::FlowCommand;
use crate::origin_args::OriginCommand;
pub use crate::pool_args::{Down, Media, Nodes, Up};
use crate::trace_args::{Stats, Top, TraceCommand};
use clap::{Args, Parser, Subcommand};
use forebay_posix::ChunkSize;
use std::ffi::OsString;
use std::path::PathBuf;

/// The heading of options that each command has.
const EVERY: &str = "Options of all commands";

/// A fast, temporary shared file system from the memory and SSDs of a job's nodes.
///
/// Programs see a pool under a mount prefix (/fb). Start one, stage data in, run programs
/// on it unchanged, stage the results out, and remove it: `forebay run` does all of that
/// in one go; up, stage, exec and down do it step by step.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, after_help = TABLE, max_term_width = 100)]
pub struct Cli {
    /// Name of the pool [env: FOREBAY_POOL] [default: default; of run: run-PID]
    #[arg(long, global = true, value_name = "NAME", help_heading = EVERY)]
    pub pool: Option<String>,
    /// No summaries, remarks and progress: only warnings and errors
    #[arg(long, short, global = true, help_heading = EVERY)]
    pub quiet: bool,
    /// Colours on the standard output; auto: on a terminal, unless $NO_COLOR is set
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        help_heading = EVERY
    )]
    pub color: Color,
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Returns the pool's name: from the option, the environment, or the default.
    pub fn pool(&self) -> String {
        let from_environment = || std::env::var("FOREBAY_POOL").ok().filter(|n| !n.is_empty());
        self.pool
            .clone()
            .or_else(from_environment)
            .unwrap_or_else(|| "default".into())
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a pool: on this node, on several hosts, or with several nodes on this host
    #[command(after_help = "\
Example:
  forebay up --media memory:4G --media files:/local/ssd:100G
  forebay up --hosts n1,n2,n3 --media memory:4G
  forebay up --nodes 4 --media memory:256M
  mpiexec -ppn 1 forebay up --mpi

Without --media the pool takes memory: a quarter of what is available. Media are used in
the order given; when one is full, the next one takes what comes. A pool of several nodes
has these media on each node.

In a Slurm job, a pool without --nodes and --hosts has all nodes of the job.")]
    Up(Up),
    /// Remove a pool and all that is in it
    #[command(after_help = "Example:\n  forebay down --force --pool campaign")]
    Down(Down),
    /// Start a pool, stage in, run a program, stage out, remove the pool
    #[command(after_help = "\
Example:
  forebay run --in ./ref:/ref --out /results:./results -- ./pipeline.sh

The results are verified before the pool is removed. If something could not be staged
out, the exit code is 120, the pool stays, and the message says how to fetch the rest.
If the program fails, its results are staged out all the same; files that it hasn't made
are no error then.")]
    Run(Run),
    /// Run a program that sees the pool under the mount prefix
    #[command(after_help = "\
Example:
  forebay exec -- ls -l /fb
  forebay exec -- ./solver /fb/case
  mpiexec -n 8 forebay exec -- ./solver /fb/case

Where a host has several nodes of a pool, the program uses the one that --node or FOREBAY_NODE
names; else ranks of mpiexec and srun are spread over them; else it is the lowest.")]
    Exec(Exec),
    /// Copy files into a pool or out of it: parallel, verified, repeatable
    #[command(after_help = "\
Example:
  forebay stage in ./case /case
  forebay stage out /case/results ./results
  forebay stage out /case/results s3://my-bucket/results
  forebay stage in --dry-run --exclude '*.tmp' ./case /case

Outside the pool, SRC and DST are paths or buckets (docs/howto/buckets.md). The content of a
directory SRC becomes that of DST; several SRC go into DST by their names. A repetition moves only
what differs.")]
    Stage(Stage),
    /// The slow store behind a pool: show where files lie, write back, evict, fetch
    #[command(after_help = "\
Example:
  forebay up --origin /lustre/project/case
  forebay exec -- ./solver /lustre/project/case/input
  forebay origin status
  forebay origin sync

docs/howto/origins.md explains it.")]
    Origin(OriginCommand),
    /// Make, find and remove workspaces, which hold collections
    #[command(
        after_help = "Example:\n  forebay workspace create campaign\n  forebay workspace list"
    )]
    Workspace(WorkspaceCommand),
    /// Make, find, read and write collections: bytes with metadata
    #[command(after_help = "\
Example:
  forebay collection put campaign pressure.3 p3.dat --meta project=mcse --meta step=3
  forebay collection find campaign 'project = \"mcse\" and step >= 2'
  forebay collection export campaign ./fields 'step >= 2'

A workspace is a directory in the root of the pool, a collection a file in it, and metadata are its
attributes `user.*`. With --store, both are known to an etcd. Predicates: docs/howto/verbs.md.")]
    Collection(CollectionCommand),
    /// Campaigns: storage with a quota and an end, which outlives jobs and pools
    #[command(after_help = "\
Example:
  forebay campaign create case7 100TB,10000files,scratch,2d
  forebay campaign up case7 --media memory:8G
  forebay campaign down case7
  forebay campaign archive case7

docs/howto/campaigns.md explains it, and the file that names the tiers.")]
    Campaign(CampaignCommand),
    /// Watch all campaigns: warn before their ends, carry out what is due then, count their usage
    #[command(
        after_help = "Example:\n  forebay campaignd --every 5m --metrics /var/lib/node_exporter/forebay.prom"
    )]
    Campaignd(Campaignd),
    /// Workflows of Snakemake that outlive a login session: a service, and its commands
    #[command(after_help = "\
Example:
  forebay flow serve &
  forebay flow token --scope read,write,start > ~/.config/forebay/flow-token
  export FOREBAY_FLOW_SERVER=http://127.0.0.1:8443
  forebay flow init study Snakefile
  forebay flow start study --wait

docs/howto/flow.md explains it.")]
    Flow(FlowCommand),
    /// List files in a pool
    #[command(after_help = "Example:\n  forebay ls -lh /case\n  forebay ls -lt /case/log")]
    Ls(Ls),
    /// Find files of a pool by name and type
    #[command(after_help = "\
Example:
  forebay find /case -name '*.h5' -type f
  forebay find / -maxdepth 1

Symbolic links aren't followed. The options may be written with one hyphen, as for find(1).")]
    Find(Find),
    /// Declare the I/O needs of a path and how a directory's content is distributed; or show them
    #[command(after_help = "\
Example:
  forebay set /ckpt mutability=immutable parallelism=exclusive
  forebay set /ckpt
  forebay set --distribution local-all /scratch
  forebay set --distribution striped --chunk-size 4M /shared

With `local`, the default, a file's data lie on the node that makes it, and the entries of a
directory on all nodes. With `local-all`, what a node makes below the directory lies on that
node with its names, so that its programs ask no other node for it. With `striped`, a file is
cut into chunks, which lie on all nodes in turn: for large files that many nodes read and
write, or that don't fit into one node. The distribution can be set while the directory is
empty; a directory that doesn't exist is created. New directories below it get it, too.

Controls declared for a directory apply to everything created in it from then on.
docs/explanation/semantics.md explains their values.")]
    Set(Set),
    /// Rules that declare the needs of I/O by path: check a file of rules, show a pool's rules,
    /// explain those for a path
    #[command(after_help = "\
Example:
  forebay rules check rules.toml
  forebay up --rules rules.toml
  forebay rules explain /ckpt/step-1.h5

A file of rules:

  [[rule]]
  path = \"/ckpt/**\"
  mutability = \"immutable\"
  on_violation = \"report\"

For each control, the last rule that matches a path and sets the control applies.")]
    Rules(RulesCommand),
    /// Record events: switch tracepoints, print events, show where time is spent
    #[command(after_help = "\
Example:
  forebay trace on create-analysis
  forebay exec -- ./program
  forebay trace costs

docs/howto/tracing.md explains it.")]
    Trace(TraceCommand),
    /// Show what a run did, as a page, and which rules would help it
    #[command(after_help = "\
Example:
  forebay run --report page.html -- ./program
  forebay report --page page.html
  forebay report --compare before.html after.html
  darshan-parser run.darshan > run.txt; forebay report --darshan run.txt --to page.html

Without --to, the advice is printed: rules that the run's pattern suggests, what they would save and
forbid. Nothing is applied. docs/howto/tracing.md explains it.")]
    Report(Report),
    /// Show counters: operations, bytes, times, requests to other nodes
    #[command(after_help = "Example:\n  forebay stats\n  forebay stats --watch 5")]
    Stats(Stats),
    /// Watch a pool on the terminal: nodes, rates, latencies, slow operations, the busiest files
    #[command(after_help = "\
Example:
  forebay top
  forebay top --every 5 --files
  forebay top --once --width 120 > now.txt

Keys: q ends, s sorts by the next column, p shows processes, f shows files, space pauses, ? helps.
Files need three tracepoints, which cost about 50 ns for each open, read and write while they are
on. docs/howto/tracing.md explains the screen.")]
    Top(Top),
    /// List operations that contradicted the controls of files, or were refused because of them
    #[command(after_help = "Example:\n  forebay violations")]
    Violations(Show),
    /// Mount a pool at a directory, for programs that `exec` can't reach
    #[command(after_help = "\
Example:
  forebay mount --pool campaign ./campaign
  ls ./campaign
  forebay umount ./campaign

For static binaries, shells and file managers that run already, containers. It needs FUSE: /dev/fuse
and, for ordinary users, fusermount3. Programs under `forebay exec` are faster, and see the
same files at the same time.")]
    Mount(Mount),
    /// Unmount a pool
    #[command(
        after_help = "Example:\n  forebay umount ./campaign\n  forebay umount --force ./campaign   # it hangs"
    )]
    Umount(Umount),
    /// Show how full the media of a pool are
    #[command(after_help = "Example:\n  forebay df -h\n  forebay df --json")]
    Df(Df),
    /// Show a pool: its media, the processes that use it, its keeper
    #[command(after_help = "Example:\n  forebay status --pool campaign")]
    Status(Status),
    /// Check a pool: records, names, extents, free space, locks; repair it
    #[command(after_help = "\
Example:
  forebay fsck --pool campaign
  forebay fsck --repair --pool campaign

Without --repair nothing is changed, and programs may use the pool meanwhile. A repair has
to be alone. Objects that have lost their name get one in /lost+found.

Exit codes:
  0  clean
  1  something was wrong and has been repaired
  4  something is wrong
  8  the check or the repair failed")]
    Fsck(Fsck),
    /// List your pools on this node and their state
    #[command(after_help = "\
Example:
  forebay pools
  forebay pools --clean

With --clean, stale pools are removed. A pool that is in use, or whose state can't be read, is kept:
a line says which, and why. Pools of other users are never touched.")]
    Pools(Pools),
    /// Tests and drills: kill, restart, pause or resume a node of a pool
    #[command(after_help = "Example:\n  forebay node kill 2\n  forebay node restart 2")]
    Node(NodeCommand),
    /// Check whether a pool can work on this host, and say what to do where it can't
    #[command(after_help = "\
Example:
  forebay doctor
  forebay doctor --hosts n1,n2

Exit code 0: a pool can work here. 1: it can't. A line that says missing but isn't needed by all
pools (FUSE, a host) doesn't count. The last check starts a pool of 64 MiB and removes it.")]
    Doctor(Doctor),
    /// Print version, versions of formats, and features
    #[command(after_help = "Example:\n  forebay version --json")]
    Version(Show),
    /// Print a script by which a shell completes commands and options
    #[command(after_help = "\
Example:
  forebay completions bash > ~/.local/share/bash-completion/completions/forebay
  forebay completions zsh > ~/.zfunc/_forebay
  forebay completions fish > ~/.config/fish/completions/forebay.fish

make install installs them.")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages of all commands into a directory
    #[command(hide = true, after_help = "Example:\n  forebay man ./man1")]
    Man {
        /// The directory
        dir: PathBuf,
    },
    /// The background process of a pool, or of a node of it; started by up and run
    #[command(
        hide = true,
        after_help = "Example:\n  forebay keeper --dir /dev/shm/forebay-1000/default"
    )]
    Keeper {
        /// Keep the existing pool
        #[arg(long, required_unless_present = "launched")]
        dir: Option<PathBuf>,
        /// Take part in the start of a pool, by messages on standard input and output
        #[arg(long)]
        launched: bool,
        /// Number of the node; it only tells the keepers in a list of processes apart
        #[arg(long)]
        node: Option<u32>,
    },
    /// Ask the MPI rank on a node's host to start the node's daemon, instead of a remote shell
    #[command(hide = true, after_help = "Example:\n  forebay reach --node 2")]
    Reach {
        /// Number of the node
        #[arg(long)]
        node: u32,
    },
    /// Move files on this node for a staging that another process leads
    #[command(hide = true, after_help = "Example:\n  forebay mover --node 2")]
    Mover {
        /// Number of this node
        #[arg(long)]
        node: u32,
    },
}

#[derive(Debug, Args)]
pub struct NodeCommand {
    #[command(subcommand)]
    pub what: Drill,
}

#[derive(Clone, Copy, Debug, Subcommand)]
pub enum Drill {
    /// Kill a node's daemon; the node's files can't be reached until it is restarted
    #[command(after_help = "Example:\n  forebay node kill 2")]
    Kill { node: u32 },
    /// Start a node's daemon again, with the files that the node has
    #[command(after_help = "Example:\n  forebay node restart 2")]
    Restart { node: u32 },
    /// Stop a node's daemon (SIGSTOP), as if its host hung
    #[command(after_help = "Example:\n  forebay node pause 2")]
    Pause { node: u32 },
    /// Let a paused daemon go on
    #[command(after_help = "Example:\n  forebay node resume 2")]
    Resume { node: u32 },
}

#[derive(Debug, Args)]
pub struct Pools {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Remove stale pools: those whose keepers are dead and that no process uses, and those whose
    /// time limit has passed
    #[arg(long)]
    pub clean: bool,
    /// With --clean, also those that can be opened again, since all their media are `files`
    #[arg(long, requires = "clean")]
    pub all: bool,
    /// With --clean, at the end of a job: remove this host's part of a stale pool even if the part
    /// on other hosts can't be removed
    #[arg(long, requires = "clean")]
    pub here: bool,
}

#[derive(Debug, Args)]
pub struct Run {
    /// Stage the file or the directory's content SRC (or s3://BUCKET/PREFIX) to /DST before;
    /// repeatable
    #[arg(help_heading = "Staging", long = "in", value_name = "SRC:/DST")]
    pub stage_in: Vec<OsString>,
    /// Stage /SRC to DST (or s3://BUCKET/PREFIX) afterwards; repeatable
    #[arg(help_heading = "Staging", long = "out", value_name = "/SRC:DST")]
    pub stage_out: Vec<OsString>,
    /// Keep the pool afterwards
    #[arg(help_heading = "Afterwards", long)]
    pub keep: bool,
    /// Make a page about the run; the file must not exist yet
    #[arg(help_heading = "Afterwards", long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Threads that stage; default: one per core, at least 8, for a bucket 16
    #[arg(
        help_heading = "Staging",
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub threads: usize,
    #[command(flatten)]
    pub media: Media,
    #[command(flatten, next_help_heading = "Nodes")]
    pub nodes: Nodes,
    /// The program and its arguments; all that follows the program is for it
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "CMD",
        help_heading = "Program"
    )]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct Exec {
    /// The node of the pool to use, if this host has several
    #[arg(long, value_name = "K")]
    pub node: Option<u32>,
    /// Mount the pool while the program runs, at the pool's prefix if possible, so that static
    /// programs and Go programs see it, too
    #[arg(long)]
    pub with_mount: bool,
    /// The program and its arguments; all that follows the program is for it
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct Stage {
    #[command(subcommand)]
    pub direction: Direction,
}

#[derive(Debug, Subcommand)]
pub enum Direction {
    /// From the file system, or from a bucket, to the pool
    #[command(after_help = "\
Example:
  forebay stage in ./case /case
  forebay stage in s3://my-bucket/case /case
  forebay stage in ./mesh ./deck.txt /case
  forebay stage in --dry-run --exclude '*.tmp' ./case /case")]
    In(Pair),
    /// From the pool to the file system, or to a bucket
    #[command(after_help = "Example:\n  forebay stage out /case/results ./results
  forebay stage out /case/results s3://my-bucket/results")]
    Out(Pair),
}

#[derive(Debug, Args)]
pub struct Pair {
    /// Files, or directories whose content is staged; several go into DST, each by its name
    #[arg(required = true)]
    pub src: Vec<OsString>,
    /// Destination
    #[arg(required = true)]
    pub dst: OsString,
    /// Only files that match, and directories that match with all below; repeatable. A pattern
    /// without / matches names at any depth, others paths relative to SRC: '*.h5', 'results/**'
    #[arg(long, value_name = "GLOB", help_heading = "What is staged")]
    pub include: Vec<String>,
    /// Not files that match; repeatable, and stronger than --include. Directories that match aren't
    /// read
    #[arg(long, value_name = "GLOB", help_heading = "What is staged")]
    pub exclude: Vec<String>,
    /// Write nothing: list what would be copied, with sizes
    #[arg(long, help_heading = "What is staged")]
    pub dry_run: bool,
    /// Threads that copy; default: one per core, at least 8, for a bucket 16
    #[arg(
        help_heading = "How",
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub threads: usize,
    /// Compare contents, not times, to see what differs
    #[arg(help_heading = "How", long)]
    pub checksum: bool,
    /// Begin even if there is more to be staged than the destination has room for
    #[arg(help_heading = "How", long)]
    pub force: bool,
    /// Print the report as JSON
    #[arg(help_heading = "Form", long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RulesCommand {
    #[command(subcommand)]
    pub what: RulesWhat,
}

#[derive(Debug, Subcommand)]
pub enum RulesWhat {
    /// Check a file of rules
    #[command(after_help = "Example:\n  forebay rules check rules.toml")]
    Check {
        /// The file
        file: PathBuf,
        /// Prefix under which programs will see the pool
        #[arg(long, default_value = "/fb", value_name = "PREFIX")]
        mount: String,
    },
    /// Show the rules of a pool
    #[command(after_help = "Example:\n  forebay rules show")]
    Show {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show which controls a path has or gets, and from where
    #[command(after_help = "\
Example:
  forebay rules explain /ckpt/step-1.h5
  forebay rules explain --file rules.toml /ckpt/step-1.h5")]
    Explain {
        /// By the rules of this file, instead of those of the pool
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Print as JSON
        #[arg(long)]
        json: bool,
        /// The path; it needn't exist
        path: OsString,
    },
}

#[derive(Debug, Args)]
pub struct Set {
    /// local, local-all or striped
    #[arg(long, value_name = "HOW")]
    pub distribution: Option<Distribution>,
    /// For striped files: a power of two from 1M to 1G [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = chunk_size)]
    pub chunk_size: Option<ChunkSize>,
    /// Print the declared controls as JSON
    #[arg(long, conflicts_with_all = ["controls", "distribution"])]
    pub json: bool,
    /// The directory, or for controls a file
    pub path: OsString,
    /// Controls to declare, such as mutability=append; an empty value withdraws a control. Without
    /// any, the declared controls are shown
    #[arg(value_name = "CONTROL=VALUE")]
    pub controls: Vec<String>,
}

/// How a directory's content is distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Distribution {
    /// Data where they are made, entries over all nodes
    Local,
    /// Data and entries where they are made
    LocalAll,
    /// Chunks of files, and entries, over all nodes
    Striped,
}

fn chunk_size(text: &str) -> Result<ChunkSize, String> {
    forebay_media::parse_size(text).and_then(ChunkSize::new)
}

#[derive(Debug, Args)]
pub struct Mount {
    /// The node of the pool to use, if this host has several
    #[arg(long, value_name = "K")]
    pub node: Option<u32>,
    /// Other users may use the mount too, as far as the modes of the files let them
    /// (ordinary users may do so if /etc/fuse.conf has user_allow_other)
    #[arg(long)]
    pub allow_other: bool,
    /// Nothing can be changed through the mount (EROFS); changes made elsewhere are seen
    #[arg(long)]
    pub read_only: bool,
    /// No programs can be started from the mount
    #[arg(long)]
    pub no_exec: bool,
    /// Set-user-ID and set-group-ID bits take effect (for root only)
    #[arg(long)]
    pub suid: bool,
    /// Devices can be opened (for root only)
    #[arg(long)]
    pub dev: bool,
    /// Change --read-only and --no-exec of the existing mount, as root
    #[arg(long, hide = true)]
    pub remount: bool,
    /// Stay in the foreground and serve the mount, until it is unmounted
    #[arg(long)]
    pub foreground: bool,
    /// Unmount when this process, and others that have joined, have ended
    #[arg(long, value_name = "PID", hide = true)]
    pub until: Option<u32>,
    /// The directory was made for the mount, and is removed with it
    #[arg(long, hide = true)]
    pub made: bool,
    /// The directory to mount at
    pub dir: OsString,
}

#[derive(Debug, Args)]
pub struct Umount {
    /// Unmount even if programs use it: no new program can use it, and those that use it now keep
    /// it until they end
    #[arg(long)]
    pub lazy: bool,
    /// Unmount even if the server doesn't answer: it is killed, and programs that wait for it get
    /// an error (ENOTCONN, ECONNABORTED)
    #[arg(long, conflicts_with = "lazy")]
    pub force: bool,
    /// The directory
    pub dir: OsString,
}

#[derive(Debug, Args)]
pub struct Fsck {
    /// Repair what can be repaired; the pool must not be used meanwhile
    #[arg(long)]
    pub repair: bool,
    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Status {
    /// Print as JSON
    #[arg(help_heading = "Form", long)]
    pub json: bool,
    /// Show usage of each table: process and reader slots, live entries, descriptions, locks,
    /// request cells, files; and the keeper's memory
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct Report {
    /// Write the page to FILE; without this option, print the advice
    #[arg(long, value_name = "FILE")]
    pub to: Option<PathBuf>,
    /// Analyse the events in a file that forebay trace record --on io-pattern has written
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Use the data of this page, which an earlier report has written
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    pub page: Option<PathBuf>,
    /// Analyse a run without Forebay: the text that darshan-parser prints of its log
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "page"])]
    pub darshan: Option<PathBuf>,
    /// Compare two pages
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with_all = ["from", "page", "darshan"])]
    pub compare: Vec<PathBuf>,
    /// Write the proposed rules to a file, for forebay up --rules
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    pub rules: Option<PathBuf>,
    /// Print the page's data and the advice as JSON
    #[arg(long, conflicts_with = "to")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Doctor {
    /// Also check that daemons can be started on these hosts
    #[arg(
        long,
        value_name = "HOST,...",
        value_delimiter = ',',
        help_heading = "Several hosts"
    )]
    pub hosts: Vec<String>,
    /// Remote shell that starts the daemons on the hosts
    #[arg(
        long,
        value_name = "PROGRAM",
        env = "FOREBAY_RSH",
        default_value = "ssh",
        help_heading = "Several hosts"
    )]
    pub rsh: String,
    /// Leave out the check that starts a pool
    #[arg(long)]
    pub no_trial: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Show {
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Collects every command with its path.
    fn all(command: &clap::Command, path: &str, found: &mut Vec<(String, clap::Command)>) {
        let path = format!("{path} {}", command.get_name());
        command.get_subcommands().for_each(|c| all(c, &path, found));
        found.push((path, command.clone()));
    }

    #[test]
    fn every_command_has_an_example() {
        Cli::command().debug_assert();
        let mut found = Vec::new();
        Cli::command()
            .get_subcommands()
            .for_each(|c| all(c, "forebay", &mut found));
        assert!(found.len() > 10);
        for (path, command) in found {
            let text = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(text.contains("Example:"), "{path} has no example");
        }
    }

    #[test]
    fn programs_keep_their_options() {
        let cli = Cli::try_parse_from(["forebay", "run", "-q", "--", "cmd", "--in", "x"]).unwrap();
        let Command::Run(run) = cli.command else {
            panic!()
        };
        assert_eq!(run.command, ["cmd", "--in", "x"]);
        assert!(Cli::try_parse_from(["forebay", "up", "--media", "tape:1G"]).is_err());
        assert!(Cli::try_parse_from(["forebay", "up", "--from", "/x"]).is_err());
    }
}
