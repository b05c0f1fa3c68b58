//! The arguments of `forebay trace`, `forebay stats` and `forebay top`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct TraceCommand {
    #[command(subcommand)]
    pub what: Trace,
}

#[derive(Debug, Subcommand)]
pub enum Trace {
    /// List tracepoints, or profiles: named sets of them
    #[command(after_help = "\
Example:
  forebay trace list 'STORE_*'")]
    List(ListPoints),
    /// Switch tracepoints on, on all nodes, for all programs, at once
    #[command(after_help = "\
Example:
  forebay trace on create-analysis
  forebay trace on 'SERVE_*' ASK_ENTER

A name is a tracepoint, a pattern, a profile, or a file that ends with .toml. Each process keeps its
newest events; forebay trace dump shows them, also those of a process that was killed.")]
    On(Switch),
    /// Switch tracepoints off; without names, all
    #[command(after_help = "\
Example:
  forebay trace off")]
    Off(Off),
    /// Say which tracepoints are on, and how much memory the events take
    #[command(after_help = "\
Example:
  forebay trace status")]
    Status(TraceShow),
    /// Print events
    #[command(after_help = "\
Example:
  forebay trace dump
  forebay trace dump --perfetto > trace.json

The form of --perfetto is opened by https://ui.perfetto.dev.")]
    Dump(Dump),
    /// Write all events to a file while programs run
    #[command(after_help = "\
Example:
  forebay trace record --to events.fbt --on data-path --for 10

Ends with Ctrl-C, after --for, or with the pool. Events that come faster than they are written are
lost, and counted; with --wait programs wait for them, unless the file can't be written any more.")]
    Record(Record),
    /// Show where time is spent: number and duration of operations, nested as they happened
    #[command(after_help = "\
Example:
  forebay trace on create-analysis
  forebay exec -- ./program
  forebay trace costs")]
    Costs(From),
    /// Show the path of one request: the work for it, on each node, with times
    #[command(after_help = "\
Example:
  forebay trace slow
  forebay trace show 0.1234.56")]
    Show(ShowRequest),
    /// List the slowest of the latest slow operations; these are recorded without tracing, too
    #[command(after_help = "\
Example:
  forebay trace slow
  forebay trace slow --bound 20")]
    Slow(Slow),
    /// Remove all events that processes have recorded
    #[command(after_help = "\
Example:
  forebay trace clear")]
    Clear,
}

#[derive(Debug, Args)]
pub struct ListPoints {
    /// Only tracepoints that match
    #[arg(value_name = "PATTERN")]
    pub patterns: Vec<String>,
    /// List profiles
    #[arg(long, conflicts_with = "patterns")]
    pub profiles: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Switch {
    /// Tracepoints, patterns, profiles
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// How many events each process that records from now on keeps: a power of two
    #[arg(long, value_name = "N")]
    pub keep: Option<u32>,
    /// Only the nodes on this host
    #[arg(long, hide = true)]
    pub here: bool,
}

#[derive(Debug, Args)]
pub struct Off {
    /// Tracepoints, patterns, profiles
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Only the nodes on this host
    #[arg(long, hide = true)]
    pub here: bool,
}

#[derive(Debug, Args)]
pub struct TraceShow {
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct From {
    /// A file that forebay trace record has written, instead of what processes keep
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Dump {
    #[command(flatten)]
    pub from: From,
    /// Print in the Trace Event format
    #[arg(long, conflicts_with = "json")]
    pub perfetto: bool,
    /// Write the events of the nodes on this host as a stream
    #[arg(long, hide = true)]
    pub stream: bool,
}

#[derive(Debug, Args)]
pub struct Record {
    /// The file; it must not exist yet
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
    /// Tracepoints, patterns or profiles to switch on for the recording
    #[arg(long, value_name = "NAME")]
    pub on: Vec<String>,
    /// Record for this many seconds
    #[arg(long = "for", value_name = "SECONDS")]
    pub length: Option<f64>,
    /// Programs wait until their events are written, so that none is lost
    #[arg(long)]
    pub wait: bool,
}

#[derive(Debug, Args)]
pub struct ShowRequest {
    /// NODE.PROCESS.NUMBER, as forebay trace slow and dump print it
    pub request: String,
    #[command(flatten)]
    pub from: From,
}

#[derive(Debug, Args)]
pub struct Slow {
    /// From now on, record operations that take longer than this many milliseconds; 0: none
    #[arg(long, value_name = "MILLISECONDS")]
    pub bound: Option<f64>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    /// Only the nodes on this host
    #[arg(long, hide = true)]
    pub here: bool,
}

#[derive(Debug, Args)]
pub struct Stats {
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    /// One line for each process
    #[arg(long)]
    pub processes: bool,
    /// Print the metrics of the nodes on this host in Prometheus' text format
    #[arg(long, conflicts_with_all = ["json", "processes", "watch"])]
    pub prometheus: bool,
    /// Print the counters of each interval of SECONDS, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    pub watch: Option<f64>,
    /// Only the nodes on this host
    #[arg(long, hide = true)]
    pub here: bool,
}

#[derive(Debug, Args)]
pub struct Top {
    /// Seconds between two updates: 0.2 to 60
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = every)]
    pub every: f64,
    /// Show files and directories from the start: switches three tracepoints on until top ends
    #[arg(long)]
    pub files: bool,
    /// Print one screen as plain text after one interval, and end; needs no terminal
    #[arg(long)]
    pub once: bool,
    /// Columns of --once: 40 to 500 [default: 100]
    #[arg(long, value_name = "N", requires = "once", value_parser = clap::value_parser!(u16).range(40..=500))]
    pub width: Option<u16>,
    /// Lines of --once: 10 to 500 [default: 30]
    #[arg(long, value_name = "N", requires = "once", value_parser = clap::value_parser!(u16).range(10..=500))]
    pub height: Option<u16>,
    /// With --once, show processes instead of operations
    #[arg(long, requires = "once")]
    pub processes: bool,
}

/// Parses the seconds between two updates.
fn every(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if (0.2..=60.0).contains(&seconds) {
        return Ok(seconds);
    }
    Err("must be between 0.2 and 60 seconds".into())
}
