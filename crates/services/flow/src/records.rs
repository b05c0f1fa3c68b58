//! The service's state: workflows and their runs, in memory and on disk.

use crate::names::check_name;
use crate::{Result, disk, now};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub const FORMAT: u32 = 1;
/// Maximum number of runs that a workflow keeps.
pub const MAX_RUNS: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workflow {
    pub format: u32,
    pub name: String,
    pub owner: String,
    /// Seconds since 1970, here and below.
    pub created: u64,
    pub state: Stage,
    pub executor: Executor,
    /// Rules whose jobs wait for an approval.
    pub approve: Vec<String>,
    pub campaign: Option<OfCampaign>,
    /// Uploaded files and their sizes. Bytes.
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
    /// Jobs are Slurm's.
    Slurm,
}

/// The campaign on whose storage a workflow runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfCampaign {
    pub name: String,
    /// Where its data are; empty while it is being made.
    pub place: String,
    /// Whether it was made for the workflow, and ends with it.
    pub is_own: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub number: u32,
    /// Random: names the run's jobs in Slurm.
    pub id: String,
    pub state: State,
    pub begun: u64,
    pub ended: Option<u64>,
    /// The key of the request that has started it.
    pub key: Option<String>,
    pub parameters: Parameters,
    pub approvals: Vec<Approval>,
    /// The rules that the latest attempt leaves out.
    pub omitted: Vec<String>,
    /// How often Snakemake was started, and how often it was lost.
    pub attempt: u32,
    pub lost: u32,
    /// When the latest attempt was started.
    pub attempted: u64,
    /// When the run was asked to end.
    pub cancelled: Option<u64>,
    pub exit: Option<i32>,
    /// The last event, for people.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The run is to be started.
    Queued,
    Running,
    /// All that needs no approval is done.
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
    /// Jobs at once, or cores of the local executor.
    pub jobs: Option<u32>,
    /// Default resources of jobs: `mem_mb`, `runtime`, `slurm_partition`, ...
    pub resources: BTreeMap<String, String>,
    /// Values for the Snakefile's `config`.
    pub config: BTreeMap<String, String>,
    /// Rules or files that are wanted, instead of the first rule.
    pub targets: Vec<String>,
    /// Go on with independent jobs after one has failed.
    pub keep_going: bool,
}

impl State {
    pub fn is_over(self) -> bool {
        matches!(self, State::Succeeded | State::Failed | State::Cancelled)
    }
}

impl Workflow {
    /// The rules that a run may not yet begin.
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

/// All workflows, by owner and name. Changes are on stable storage before a call returns.
pub struct Records {
    dir: PathBuf,
    all: BTreeMap<(String, String), Workflow>,
}

impl Records {
    /// Reads all records below a state directory. Damaged ones are reported, and not changed.
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

    /// Adds a workflow. Fails if its record exists, even unreadable.
    ///
    /// # Errors
    /// If the record exists, or can't be written.
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

    /// Changes a workflow, if it exists. Returns the result of the change.
    ///
    /// # Errors
    /// The record can't be written: then nothing has changed.
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
