//! The arguments of `forebay flow`.

use crate::lifetime::Span;
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct FlowCommand {
    #[command(subcommand)]
    pub what: OfFlow,
}

/// How to reach the service.
#[derive(Debug, Args)]
pub struct Reach {
    /// Address of the service: https://HOST:PORT
    #[arg(long, env = "FOREBAY_FLOW_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// File with the token [default: ~/.config/forebay/flow-token]; $FOREBAY_FLOW_TOKEN is the
    /// token itself
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Certificates to trust, instead of the public ones
    #[arg(long, env = "FOREBAY_FLOW_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Executor {
    /// Jobs run on the service's host
    Local,
    /// Jobs run in Slurm
    Slurm,
}

#[derive(Debug, Subcommand)]
pub enum OfFlow {
    /// Serve: start and watch runs, until SIGTERM; runs continue without the service
    #[command(after_help = "\
Example:
  forebay flow serve --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem
  forebay flow serve                          # for yourself: on 127.0.0.1, without TLS

Snakefiles are programs: whoever has a token that allows `write` and `start` runs what they like,
as the token's user. A service of root serves all users, one of another user serves that user.")]
    Serve(Serve),
    /// Make a token for a user, on the service's host; list and revoke tokens
    #[command(after_help = "\
Example:
  forebay flow token --user ann --scope read,write,start,approve --for 7d
  forebay flow token --list
  forebay flow token --revoke 0123456789abcdef")]
    Token(Token),
    /// Make a workflow with its working directory, or give an existing one a new Snakefile
    #[command(after_help = "\
Example:
  forebay flow init study Snakefile --executor slurm --spec 1T,scratch,7d --approve publish")]
    Init(Init),
    /// Upload files, or directories with all files in them, into a workflow's directory
    #[command(after_help = "Example:\n  forebay flow upload study config.yaml data --to input")]
    Upload(Upload),
    /// Start a run
    #[command(after_help = "\
Example:
  forebay flow start study --jobs 20 --resource mem_mb=2000 --resource runtime=30
  forebay flow start study --wait")]
    Start(Start),
    /// Show your workflows, one with its runs, or one run with its jobs
    #[command(after_help = "Example:\n  forebay flow status study 3")]
    Status(Status),
    /// List the files in a workflow's directory
    #[command(after_help = "Example:\n  forebay flow list study")]
    List(List),
    /// Get a file from a workflow's directory
    #[command(after_help = "Example:\n  forebay flow get study results/summary.csv summary.csv")]
    Get(Get),
    /// Print Snakemake's output of a run
    #[command(after_help = "Example:\n  forebay flow logs study --follow")]
    Logs(Logs),
    /// Approve a step for which a run waits
    #[command(after_help = "Example:\n  forebay flow approve study publish")]
    Approve(Approve),
    /// Cancel a run, with its jobs in Slurm
    #[command(after_help = "Example:\n  forebay flow cancel study")]
    Cancel(OfRun),
    /// Delete files of a workflow, or the workflow with its logs and the campaign made for it
    #[command(
        after_help = "Example:\n  forebay flow delete study input/old.csv\n  forebay flow delete study"
    )]
    Delete(Delete),
    /// Print the OpenAPI document of the service's interface
    #[command(after_help = "Example:\n  forebay flow openapi > flow.json")]
    Openapi,
    /// Runs beside a run's Snakemake; the service starts it
    #[command(hide = true, after_help = "Example: none; the service starts it.")]
    Keep(Keep),
}

#[derive(Debug, Args)]
pub struct Serve {
    /// Directory of the service [default: /var/lib/forebay/flow; for users other than root
    /// ~/.local/share/forebay/flow]
    #[arg(long, env = "FOREBAY_FLOW_STATE", value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Address and port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8443")]
    pub listen: SocketAddr,
    /// Limits, paths, options for Snakemake (TOML; docs/howto/flow.md)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Certificates of the service (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Token {
    /// Directory of the service, as for `serve`
    #[arg(long, env = "FOREBAY_FLOW_STATE", value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// User whose rights requests with this token have [default: you]
    #[arg(long)]
    pub user: Option<String>,
    /// Rights of the token: some of read,write,start,approve
    #[arg(long, value_name = "SCOPES", default_value = "read")]
    pub scope: String,
    /// How long the token is valid
    #[arg(long = "for", value_name = "TIME", default_value = "7d")]
    pub time: Span,
    /// List tokens
    #[arg(long, conflicts_with_all = ["user", "revoke"])]
    pub list: bool,
    /// Revoke the token with this id
    #[arg(long, value_name = "ID", conflicts_with = "user")]
    pub revoke: Option<String>,
}

#[derive(Debug, Args)]
pub struct Init {
    pub workflow: String,
    /// The Snakefile to upload
    pub snakefile: Option<PathBuf>,
    /// Where jobs run
    #[arg(long, value_enum, default_value = "local")]
    pub executor: Executor,
    /// Rule before which a run waits for an approval; may be given several times
    #[arg(long, value_name = "RULE")]
    pub approve: Vec<String>,
    /// Campaign in which the workflow works
    #[arg(long, value_name = "NAME")]
    pub campaign: Option<String>,
    /// Make a campaign for the workflow, which ends with it: SIZE,NUMBERfiles,TIER,TIME
    #[arg(long, value_name = "SPEC")]
    pub spec: Option<String>,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct Upload {
    pub workflow: String,
    /// Files and directories
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Directory in the workflow's directory
    #[arg(long, value_name = "DIR")]
    pub to: Option<String>,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct Start {
    pub workflow: String,
    /// Rules or files to make [default: the first rule]
    pub targets: Vec<String>,
    /// Maximum number of jobs at once; cores with the local executor
    #[arg(long, value_name = "N")]
    pub jobs: Option<u32>,
    /// Default resource of jobs, as for Snakemake: mem_mb, runtime, slurm_partition
    #[arg(long, value_name = "NAME=VALUE")]
    pub resource: Vec<String>,
    /// Value for the Snakefile's `config`
    #[arg(long = "config", value_name = "NAME=VALUE")]
    pub values: Vec<String>,
    /// Go on with other jobs when one has failed
    #[arg(long)]
    pub keep_going: bool,
    /// Wait until the run has ended, or needs an approval; fail if it has failed
    #[arg(long)]
    pub wait: bool,
    /// Print the run as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct Status {
    pub workflow: Option<String>,
    /// Number of a run
    pub run: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct List {
    pub workflow: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct Get {
    pub workflow: String,
    /// The file, below the workflow's directory
    pub path: String,
    /// File to write [default: standard output]
    pub to: Option<PathBuf>,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct Logs {
    pub workflow: String,
    /// Number of the run [default: the latest]
    pub run: Option<u32>,
    /// Print output as it arrives, until the run has ended
    #[arg(long, short)]
    pub follow: bool,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct Approve {
    pub workflow: String,
    /// The rule
    pub rule: String,
    /// Number of the run [default: the latest]
    #[arg(long, value_name = "N")]
    pub run: Option<u32>,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct OfRun {
    pub workflow: String,
    /// Number of the run [default: the latest]
    pub run: Option<u32>,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct Delete {
    pub workflow: String,
    /// Files; without any, the whole workflow
    pub paths: Vec<String>,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Args)]
pub struct Keep {
    #[arg(long)]
    pub dir: PathBuf,
    #[arg(long)]
    pub work: PathBuf,
    #[arg(long)]
    pub attempt: u32,
    #[arg(long)]
    pub slurm: Option<String>,
    #[arg(long)]
    pub plan_words: usize,
    #[arg(last = true)]
    pub words: Vec<OsString>,
}
