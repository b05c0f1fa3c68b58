//! The arguments of `forebay workspace` and `forebay collection`.

use clap::{Args, Subcommand};
use forebay_iov::Meta;
use std::path::PathBuf;

/// Name of the back end that stores bytes as files of the pool.
pub const FILES: &str = "forebay";

#[derive(Debug, Args)]
pub struct WorkspaceCommand {
    #[command(flatten)]
    pub known: Known,
    #[command(subcommand)]
    pub what: OfWorkspace,
}

#[derive(Debug, Args)]
pub struct CollectionCommand {
    #[command(flatten)]
    pub known: Known,
    #[command(subcommand)]
    pub what: OfCollection,
}

/// The metadata store that keeps workspaces and collections.
#[derive(Debug, Args)]
pub struct Known {
    /// Where metadata lie, if not in the pool:
    /// etcd://[USER@]HOST:PORT[,HOST:PORT...][/PREFIX][?password=FILE]
    #[arg(
        long = "store",
        global = true,
        value_name = "PLACE",
        env = "FOREBAY_METADATA"
    )]
    pub store: Option<String>,
    /// Directory DIR in which the back end NAME stores the bytes of its collections; repeatable
    #[arg(long = "attach", global = true, value_name = "NAME=DIR", value_parser = attached)]
    pub attached: Vec<(String, String)>,
}

/// The back end that stores the bytes of new objects.
#[derive(Debug, Args)]
pub struct Target {
    /// The back end of new objects: one of --attach, or `forebay`, the pool (default: the pool, if
    /// there is one)
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
}

/// Metadata and controls of a new workspace or collection.
#[derive(Debug, Args)]
pub struct NewAttributes {
    /// Metadata; repeatable
    #[arg(long = "meta", value_name = "KEY=VALUE", value_parser = pair)]
    pub meta: Vec<(String, String)>,
}

#[derive(Debug, Subcommand)]
pub enum OfWorkspace {
    /// Make a workspace
    #[command(after_help = "Example:\n  forebay workspace create campaign --meta owner=me")]
    Create {
        name: String,
        #[command(flatten)]
        new_attributes: NewAttributes,
    },
    /// List the workspaces
    #[command(after_help = "Example:\n  forebay workspace list")]
    List {
        /// Print the complete records as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the record of a workspace
    #[command(after_help = "Example:\n  forebay workspace show campaign")]
    Show {
        name: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the workspaces whose metadata match
    #[command(after_help = "Example:\n  forebay workspace find 'owner = \"me\"'")]
    Find {
        predicate: String,
        /// Print the complete records as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a workspace, which must be empty
    #[command(after_help = "Example:\n  forebay workspace rm campaign")]
    Rm { name: String },
}

#[derive(Debug, Subcommand)]
pub enum OfCollection {
    /// Make an empty collection
    #[command(
        after_help = "Example:\n  forebay collection create campaign pressure.3 --meta project=mcse --meta step=3"
    )]
    Create {
        workspace: String,
        name: String,
        #[command(flatten)]
        new_attributes: NewAttributes,
        /// A control that the collection's use needs, such as mutability=append; repeatable
        #[arg(long = "control", value_name = "CONTROL=VALUE")]
        controls: Vec<String>,
        #[command(flatten)]
        into: Target,
    },
    /// List the collections of a workspace
    #[command(after_help = "Example:\n  forebay collection list campaign")]
    List {
        workspace: String,
        /// Print the complete records as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the record of a collection
    #[command(after_help = "Example:\n  forebay collection show campaign pressure.3")]
    Show {
        workspace: String,
        name: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the collections whose metadata match
    #[command(
        after_help = "Example:\n  forebay collection find campaign 'project = \"mcse\" and step >= 2'"
    )]
    Find {
        workspace: String,
        predicate: String,
        /// Print the complete records as JSON
        #[arg(long)]
        json: bool,
    },
    /// Write a file to a collection, which is created if necessary; the collection's previous
    /// content is replaced
    #[command(
        after_help = "Example:\n  forebay collection put campaign pressure.3 p3.dat --meta step=3\n  date | forebay collection put campaign log -"
    )]
    Put {
        workspace: String,
        name: String,
        /// `-`: the standard input
        file: PathBuf,
        #[command(flatten)]
        new_attributes: NewAttributes,
        #[command(flatten)]
        into: Target,
    },
    /// Write a collection to a file or to the standard output
    #[command(after_help = "Example:\n  forebay collection get campaign pressure.3 p3.dat")]
    Get {
        workspace: String,
        name: String,
        /// None, or `-`: the standard output
        file: Option<PathBuf>,
    },
    /// Make collections of the files of a directory
    #[command(after_help = "\
Example:
  forebay collection import campaign ./fields --meta project=mcse

All nodes of the pool take part. Attributes `user.*` of the files become metadata. Directories,
hidden files and links are left out, and listed. A repetition moves only what differs.")]
    Import {
        workspace: String,
        directory: PathBuf,
        #[command(flatten)]
        new_attributes: NewAttributes,
        #[command(flatten)]
        into: Target,
        /// Print the report as JSON
        #[arg(long)]
        json: bool,
    },
    /// Make files of collections: all, or those whose metadata match
    #[command(after_help = "\
Example:
  forebay collection export campaign ./fields 'step >= 2'

Each node writes the collections that it holds; those in directories (--attach) are copied by this
process. Metadata become attributes `user.*`, where the file system has these.")]
    Export {
        workspace: String,
        directory: PathBuf,
        #[arg(default_value = "", hide_default_value = true)]
        predicate: String,
        /// Print the report as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove collections
    #[command(after_help = "Example:\n  forebay collection rm campaign pressure.3")]
    Rm {
        workspace: String,
        #[arg(required = true)]
        names: Vec<String>,
    },
}

fn pair(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = parts.ok_or("isn't KEY=VALUE, such as step=3")?;
    Ok((key.into(), value.into()))
}

fn attached(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=');
    let (name, dir) = parts
        .filter(|(name, dir)| !name.is_empty() && !dir.is_empty())
        .ok_or("isn't NAME=DIR, such as scratch=/scratch/me")?;
    match name {
        FILES => Err("'forebay' is the pool; choose it with --pool".into()),
        _ => Ok((name.into(), dir.into())),
    }
}

impl NewAttributes {
    pub fn meta(&self) -> Meta {
        self.meta.iter().cloned().collect()
    }

    pub fn changes(&self) -> Vec<forebay_iov::Change> {
        let change = |(key, value): (String, String)| (key, Some(value));
        self.meta().into_iter().map(change).collect()
    }
}
