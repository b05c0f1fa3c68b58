//! The arguments of `forebay campaign` and `forebay campaignd`.

use crate::lifetime::Span;
use crate::pool_args::{Down, Up};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct CampaignCommand {
    #[command(subcommand)]
    pub what: OfCampaign,
}

#[derive(Debug, Subcommand)]
pub enum OfCampaign {
    /// Make a campaign: a directory on a tier, with a quota and an end
    #[command(after_help = "\
Example:
  forebay campaign create case7 100TB,10000files,scratch,2d
  forebay campaign create case7 --size 100T --files 10000 --tier scratch --for 2d")]
    Create(Create),
    /// List your campaigns
    #[command(after_help = "Example:\n  forebay campaign list")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a campaign: place, quota, usage, end, and what happened to it
    #[command(after_help = "Example:\n  forebay campaign show case7")]
    Show {
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Count the campaign's usage now
        #[arg(long)]
        count: bool,
    },
    /// Print the path of a campaign's data, for scripts
    #[command(after_help = "Example:\n  cd \"$(forebay campaign path case7)\"")]
    Path { name: String },
    /// Let a campaign end later
    #[command(after_help = "Example:\n  forebay campaign extend case7 7d")]
    Extend {
        name: String,
        /// How much later
        time: Span,
    },
    /// Change a campaign's quota, as far as its tier allows; its pool obeys it at once
    #[command(after_help = "\
Example:
  forebay campaign quota case7 --size 200T
  forebay campaign quota case7 --files none")]
    Quota {
        name: String,
        /// Maximum number of bytes; none: as many as the tier allows [default: as before]
        #[arg(long, value_name = "SIZE", value_parser = most_bytes)]
        size: Option<Most>,
        /// Maximum number of files, directories and links included; none: as many as the tier
        /// allows [default: as before]
        #[arg(long, value_name = "N", value_parser = most_files)]
        files: Option<Most>,
    },
    /// Set which other users may use a campaign's data: these and no others
    #[command(after_help = "\
Example:
  forebay campaign share case7 ann bob:ro
  forebay campaign share case7               # nobody

Access control lists of the file system are set for that (setfacl).")]
    Share {
        name: String,
        /// Users; with `:ro`, users that may only read
        users: Vec<String>,
    },
    /// Start a pool for a campaign: programs use its data at the pool's speed, under the same paths
    #[command(after_help = "\
Example:
  forebay campaign up case7 --media memory:8G
  forebay exec --pool case7 -- ./solver /scratch/me/case7/input
  forebay campaign down case7

The pool has the campaign's name, and the campaign's data as its origin (docs/howto/origins.md), so
that it may be started again later, on other nodes. It ends with the campaign.")]
    Up(CampaignUp),
    /// Remove a campaign's pool; the data stay in the campaign's directory
    #[command(after_help = "Example:\n  forebay campaign down case7")]
    Down(CampaignDown),
    /// Move a campaign's data to another tier
    #[command(after_help = "Example:\n  forebay campaign migrate case7 home")]
    Migrate { name: String, tier: String },
    /// Move a campaign's data to the tier for archives
    #[command(after_help = "Example:\n  forebay campaign archive case7")]
    Archive { name: String },
    /// Restore a campaign that has ended or was archived
    #[command(after_help = "Example:\n  forebay campaign restore case7 --for 7d")]
    Restore {
        name: String,
        /// Tier to move to [default: the one that it was on; for an archived campaign the only
        /// tier]
        #[arg(long)]
        tier: Option<String>,
        /// For how long [default: as the tier says]
        #[arg(long = "for", value_name = "TIME")]
        time: Option<Span>,
    },
    /// End a campaign now: its data are moved aside, and removed after the grace period
    #[command(
        after_help = "Example:\n  forebay campaign delete case7\n  forebay campaign delete --now case7"
    )]
    Delete {
        name: String,
        /// Remove the data at once
        #[arg(long)]
        now: bool,
    },
}

/// A limit on bytes or files; None: no limit.
#[derive(Clone, Copy, Debug)]
pub struct Most(pub Option<u64>);

fn most_bytes(text: &str) -> Result<Most, String> {
    match text {
        "none" => Ok(Most(None)),
        _ => forebay_media::parse_size(text).map(|most| Most(Some(most))),
    }
}

fn most_files(text: &str) -> Result<Most, String> {
    match text {
        "none" => Ok(Most(None)),
        _ => text
            .parse()
            .map(|most| Most(Some(most)))
            .map_err(|_| format!("'{text}' is no number")),
    }
}

#[derive(Debug, Args)]
pub struct Create {
    pub name: String,
    /// All settings in one word: SIZE,NUMBERfiles,TIER,TIME; each part may be missing
    pub spec: Option<String>,
    /// Maximum number of bytes
    #[arg(long, value_name = "SIZE", value_parser = forebay_media::parse_size)]
    pub size: Option<u64>,
    /// Maximum number of files, directories and links included
    #[arg(long, value_name = "N")]
    pub files: Option<u64>,
    /// The tier [default: the only one that is no archive]
    #[arg(long)]
    pub tier: Option<String>,
    /// How long it lasts [default: as the tier says]
    #[arg(long = "for", value_name = "TIME")]
    pub time: Option<Span>,
    /// Action on the data at the end: archive, delete, keep or move:TIER [default: as the
    /// tier says]
    #[arg(long, value_name = "WHAT")]
    pub at_end: Option<String>,
    /// How long deleted data can be restored after the end [default: the tier's]
    #[arg(long, value_name = "TIME")]
    pub grace: Option<Span>,
    /// If a campaign of this name exists already, leave it as it is
    #[arg(long)]
    pub if_absent: bool,
    /// Print the campaign as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CampaignUp {
    pub name: String,
    /// The pool's name [default: the campaign's]
    #[arg(long = "as", value_name = "POOL")]
    pub pool_name: Option<String>,
    #[command(flatten)]
    pub up: Box<Up>,
}

#[derive(Debug, Args)]
pub struct CampaignDown {
    pub name: String,
    #[command(flatten)]
    pub down: Down,
}

#[derive(Debug, Args)]
pub struct Campaignd {
    /// Time between two passes
    #[arg(long, value_name = "TIME", default_value = "1m")]
    pub every: Span,
    /// How old a count of a campaign's usage may be [default: 10m; with --once, all are counted]
    #[arg(long, value_name = "TIME")]
    pub count_every: Option<Span>,
    /// Write metrics for Prometheus to this file after each pass
    #[arg(long, value_name = "FILE")]
    pub metrics: Option<PathBuf>,
    /// Print the campaigns as JSON after each pass
    #[arg(long)]
    pub json: bool,
    /// Make one pass, and end
    #[arg(long)]
    pub once: bool,
    /// Work for all users who have campaigns, with the rights of each; only root can
    #[arg(long)]
    pub all_users: bool,
    /// With --all-users: end a user's pass after this time; the next pass continues its work
    #[arg(long, value_name = "TIME", default_value = "1d")]
    pub pass_limit: Span,
}
