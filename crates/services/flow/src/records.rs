//! The service's records: workflows and their runs, in memory and on disk.

use crate::names::check_name;
use crate::{Result, disk, now};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub const FORMAT: u32 = 1;
/// Maximum number of runs that a workflow's record has.
pub const MAX_RUNS: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workflow {
    pub format: u32,
    pub name: String,
    pub owner: String,
    /// Times here and below are in seconds since 1970.
    pub created: u64,
    pub state: Stage,
    pub executor: Executor,
    /// Rules whose jobs wait for an approval.
    pub approve: Vec<String>,
    pub campaign: Option<OfCampaign>,
    /// Uploaded files, and their sizes in bytes.
    pub uploads: BTreeMap<String, u64>,
    pub runs: Vec<Run>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The workflow's directory and campaign are being made.
    Making,
    Ready,
    /// The workflow's files are being removed.
    Deleting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Executor {
    /// Jobs run on the service's host.
    Local,
    /// Jobs run in Slurm.
    Slurm,
}

/// The campaign on whose storage a workflow runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfCampaign {
    pub name: String,
    /// The path of the campaign's data. Empty while the campaign is being made.
    pub place: String,
    /// Whether the campaign was made for the workflow, and is deleted with it.
    pub is_own: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub number: u32,
    /// A random id, which is part of the names of the run's jobs in Slurm.
    pub id: String,
    pub state: State,
    pub begun: u64,
    pub ended: Option<u64>,
    /// The key of the request that started the run: a repeated request starts no second run.
    pub key: Option<String>,
    pub parameters: Parameters,
    pub approvals: Vec<Approval>,
    /// The rules that the latest attempt omits, because they aren't approved.
    pub omitted: Vec<String>,
    /// Number of attempts, and of those that ended without an exit code.
    pub attempt: u32,
    pub lost: u32,
    /// Start time of the latest attempt.
    pub attempted: u64,
    /// Time of the request to cancel the run.
    pub cancelled: Option<u64>,
    pub exit: Option<i32>,
    /// The last event, as a message to users.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The run's next attempt is still to be started.
    Queued,
    Running,
    /// All jobs that need no further approval are done.
    Waiting,
    Succeeded,
    Failed,
    Cancelled,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    pub rule: String,
    pub by: String,
    pub at: u64,
}

/// A user's options for a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Maximum number of jobs at the same time; for the local executor, number of cores.
    pub jobs: Option<u32>,
    /// Default resources of a job: `mem_mb`, `runtime`, `slurm_partition`, ...
    pub resources: BTreeMap<String, String>,
    /// Values in the Snakefile's `config`.
    pub config: BTreeMap<String, String>,
    /// Rules or files to make, instead of the first rule.
    pub targets: Vec<String>,
    /// Whether independent jobs continue after a job has failed.
    pub keep_going: bool,
}

impl State {
    pub fn is_over(self) -> bool {
        matches!(self, State::Succeeded | State::Failed | State::Cancelled)
    }
}

impl Workflow {
    /// Returns the rules that need an approval and have none in this run.
    pub fn unapproved(&self, run: &Run) -> Vec<String> {
        let is_approved = |rule: &&String| run.approvals.iter().any(|a| a.rule == **rule);
        let left = self.approve.iter().filter(|rule| !is_approved(rule));
        left.cloned().collect()
    }

    pub fn run(&self, number: u32) -> Option<&Run> {
        self.runs.iter().find(|r| r.number == number)
    }

    pub fn run_mut(&mut self, number: u32) -> Option<&mut Run> {
        self.runs.iter_mut().find(|r| r.number == number)
    }

    pub fn is_active(&self) -> bool {
        self.runs.iter().any(|r| !r.state.is_over())
    }
}

impl Run {
    /// Ends the run.
    pub fn end(&mut self, state: State, message: impl Into<String>) {
        self.state = state;
        self.ended = Some(now());
        self.message = message.into();
    }
}

/// All workflows, by owner and name. Changes are on stable storage when a call returns.
pub struct Records {
    dir: PathBuf,
    all: BTreeMap<(String, String), Workflow>,
}

impl Records {
    /// Reads all records below a state directory. Damaged ones are reported and left unchanged.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn open(state: &Path, tell: &dyn Fn(&str)) -> Result<Records> {
        let dir = state.join("records");
        disk::make_dir(&dir, 0o700)?;
        let mut all = BTreeMap::new();
        let failed = |e: std::io::Error| format!("{}: {e}", dir.display());
        for entry in fs::read_dir(&dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(owner) = entry.file_name().into_string() else {
                continue;
            };
            for name in disk::names(&entry.path())? {
                let path = entry.path().join(format!("{name}.json"));
                match disk::load::<Workflow>(&path) {
                    Ok(Some(w)) if (&w.owner, &w.name, w.format) == (&owner, &name, FORMAT) => {
                        all.insert((owner.clone(), name), w);
                    }
                    Ok(None) => {}
                    Ok(Some(w)) => tell(&format!(
                        "{} is '{}' of '{}' in format {}; this program reads format {FORMAT}",
                        path.display(),
                        w.name,
                        w.owner,
                        w.format
                    )),
                    Err(why) => tell(&why),
                }
            }
        }
        Ok(Records { dir, all })
    }

    pub fn get(&self, owner: &str, name: &str) -> Option<&Workflow> {
        self.all.get(&(owner.to_owned(), name.to_owned()))
    }

    pub fn of<'a>(&'a self, owner: &'a str) -> impl Iterator<Item = &'a Workflow> {
        self.all.values().filter(move |w| w.owner == owner)
    }

    pub fn all(&self) -> impl Iterator<Item = &Workflow> {
        self.all.values()
    }

    fn path(&self, owner: &str, name: &str) -> PathBuf {
        self.dir.join(owner).join(format!("{name}.json"))
    }

    /// Adds a workflow. Fails if its record exists, even one that can't be read.
    ///
    /// # Errors
    /// The record exists, or can't be written.
    pub fn add(&mut self, workflow: Workflow) -> Result<()> {
        check_name(&workflow.name)?;
        disk::make_dir(&self.dir.join(&workflow.owner), 0o700)?;
        let path = self.path(&workflow.owner, &workflow.name);
        if path.exists() {
            return Err(format!("{} is there already", path.display()));
        }
        disk::save(&path, &workflow)?;
        let key = (workflow.owner.clone(), workflow.name.clone());
        self.all.insert(key, workflow);
        Ok(())
    }

    /// Calls `change` on a workflow and saves it. Returns the result of `change`; None if the
    /// workflow doesn't exist.
    ///
    /// # Errors
    /// The record can't be written. The workflow is unchanged.
    pub fn change<T>(
        &mut self,
        owner: &str,
        name: &str,
        change: impl FnOnce(&mut Workflow) -> T,
    ) -> Result<Option<T>> {
        let path = self.path(owner, name);
        let Some(workflow) = self.all.get_mut(&(owner.to_owned(), name.to_owned())) else {
            return Ok(None);
        };
        let mut changed = workflow.clone();
        let result = change(&mut changed);
        if changed != *workflow {
            disk::save(&path, &changed)?;
            *workflow = changed;
        }
        Ok(Some(result))
    }

    /// Removes a record.
    ///
    /// # Errors
    /// The record can't be removed.
    pub fn forget(&mut self, owner: &str, name: &str) -> Result<()> {
        disk::remove(&self.path(owner, name))?;
        self.all.remove(&(owner.to_owned(), name.to_owned()));
        Ok(())
    }
}
