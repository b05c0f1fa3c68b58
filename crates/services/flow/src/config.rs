//! The service's configuration: one TOML file, in which every value has a default.
//!
//! ```toml
//! snakemake = "/opt/snakemake/bin/snakemake"
//!
//! [limits]
//! runs = 4             # of one user, at the same time
//! upload = "1G"        # one file
//! uploads = "20G"      # all uploaded files of a user
//!
//! [slurm]
//! options = ["--slurm-status-command", "squeue"]
//! ```

use crate::Result;
use forebay_media::parse_size;
use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The Snakemake program: a path, or a name that is searched for in the users' PATH.
    pub snakemake: String,
    /// Whether root may have tokens and runs.
    pub root: bool,
    pub limits: Limits,
    /// Further arguments for Snakemake, for the local executor and for Slurm.
    pub local: Vec<String>,
    pub slurm: Vec<String>,
    /// Maximum number of this host's cores that a run may use.
    pub cores: u32,
    /// Environment variables for runs.
    pub environment: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of a user's runs that aren't over.
    pub runs: usize,
    /// Maximum number of all users' runs that aren't over.
    pub all_runs: usize,
    /// Maximum number of workflows of a user.
    pub workflows: usize,
    /// Maximum size of one uploaded file, and of all uploaded files of a user. Bytes.
    pub upload: u64,
    pub uploads: u64,
    /// Maximum number of uploaded files of a workflow.
    pub files: usize,
    /// Maximum number of times that a run is started again after it has ended without an exit code.
    pub restarts: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    snakemake: Option<String>,
    #[serde(default)]
    root: bool,
    #[serde(default)]
    limits: LimitsText,
    #[serde(default)]
    local: LocalText,
    #[serde(default)]
    slurm: SlurmText,
    #[serde(default)]
    environment: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsText {
    runs: Option<usize>,
    all_runs: Option<usize>,
    workflows: Option<usize>,
    upload: Option<String>,
    uploads: Option<String>,
    files: Option<usize>,
    restarts: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LocalText {
    cores: Option<u32>,
    #[serde(default)]
    options: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SlurmText {
    #[serde(default)]
    options: Vec<String>,
}

impl Config {
    /// Reads a configuration file. Without a file, returns the defaults.
    ///
    /// # Errors
    /// The file can't be read or is invalid. The message names file and line.
    pub fn read(file: Option<&Path>) -> Result<Config> {
        let Some(file) = file else {
            return Config::parse("", Path::new(""));
        };
        let text = untrusted::read_text(file, Links::Named, MAX_SETTINGS).map_err(|e| {
            format!(
                "can't read {}: {e} (docs/howto/flow.md shows one)",
                file.display()
            )
        })?;
        Config::parse(&text, file)
    }

    /// Parses the text of a configuration file.
    ///
    /// # Errors
    /// A message that names the file and the invalid value.
    pub fn parse(text: &str, file: &Path) -> Result<Config> {
        let shown = file.display();
        let read: File = toml::from_str(text).map_err(|e| format!("{shown}: {e}"))?;
        let size = |name: &str, text: &Option<String>, otherwise: u64| match text {
            Some(text) => parse_size(text).map_err(|e| format!("{shown}: limits.{name}: {e}")),
            None => Ok(otherwise),
        };
        let l = &read.limits;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        for name in read.environment.keys() {
            let is_good = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(is_good) {
                return Err(format!("{shown}: environment: '{name}' is no name"));
            }
        }
        Ok(Config {
            snakemake: read.snakemake.unwrap_or_else(|| "snakemake".into()),
            root: read.root,
            limits: Limits {
                runs: l.runs.unwrap_or(4),
                all_runs: l.all_runs.unwrap_or(100),
                workflows: l.workflows.unwrap_or(100),
                upload: size("upload", &l.upload, 1 << 30)?,
                uploads: size("uploads", &l.uploads, 20 << 30)?,
                files: l.files.unwrap_or(10_000),
                restarts: l.restarts.unwrap_or(5),
            },
            cores: read.local.cores.unwrap_or(cores).max(1),
            local: read.local.options,
            slurm: read.slurm.options,
            environment: read.environment,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told() {
        let parse = |text| Config::parse(text, Path::new("f.toml"));
        let all = parse("[limits]\nuploads = '2K'\n[slurm]\noptions = ['-x']").unwrap();
        assert_eq!((all.limits.uploads, all.limits.runs), (2048, 4));
        assert_eq!(all.slurm, ["-x"]);
        for (text, says) in [
            (
                "[limits]\nuploads = 'x'",
                "limits.uploads: 'x' is not a size",
            ),
            ("a = 1", "unknown field"),
            ("[limits]\nruns = -1", "line 2"),
            ("[environment]\n'A B' = 'c'", "'A B' is no name"),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(says) && why.contains("f.toml"), "{why}");
        }
    }
}
