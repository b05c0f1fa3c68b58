//! The service's operations on workflows, files and runs. The interface's requests and the engine
//! call them.
//!
//! Locking: `records` is locked only while a record is changed and written. Nothing else blocks
//! under this lock, and programs and users' files are never used under it. `making` may be locked
//! under it.

use crate::account::{self, Account};
use crate::area::{self, Area};
use crate::config::Config;
use crate::launch::{self, Places};
use crate::names::{check_identifier, check_name, check_word, path_parts};
use crate::records::{
    Approval, Executor, FORMAT, MAX_RUNS, OfCampaign, Parameters, Records, Run, Stage, State,
    Workflow,
};
use crate::{Result, disk, now, token};
use forebay_runtime::threads::lock;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The plug-in by which Snakemake reports jobs.
const PLUGIN: &str = include_str!("../page/plugin.py");
/// Time for which data about a user, or about a campaign's usage, aren't read again.
const FRESH: Duration = Duration::from_secs(15);
/// Maximum number of parameters of one kind, and of rules that need approvals.
const MAX_VALUES: usize = 100;
/// Maximum length of a request's key. Bytes.
const MAX_REQUEST_KEY_BYTES: usize = 100;

/// The reason why a request isn't carried out: an HTTP status and a message.
#[derive(Debug, PartialEq, Eq)]
pub struct Error {
    pub status: u16,
    pub message: String,
}

impl Error {
    pub fn new(status: u16, message: impl Into<String>) -> Error {
        Error {
            status,
            message: message.into(),
        }
    }

    /// Returns the error for a connection that has lost its place to another one.
    pub fn shed() -> Error {
        Error::new(
            503,
            "too many requests are in progress, and this was the slowest: send it again",
        )
    }

    fn absent() -> Error {
        Error::new(404, "there is no such workflow, or it isn't yours")
    }
}

/// A message about the service's own files is an internal error (500).
impl From<String> for Error {
    fn from(message: String) -> Error {
        Error::new(500, message)
    }
}

impl From<area::Error> for Error {
    fn from(error: area::Error) -> Error {
        match error {
            area::Error::Path(why) => Error::new(400, why),
            area::Error::Absent => Error::new(404, "there is no such file"),
            area::Error::Kind => {
                Error::new(409, "this is no regular file, or a directory with files")
            }
            area::Error::Sender(e) if e.kind() == std::io::ErrorKind::TimedOut => {
                Error::new(408, "the bytes came too slowly")
            }
            area::Error::Sender(e) if e.kind() == std::io::ErrorKind::ConnectionAborted => {
                Error::shed()
            }
            area::Error::Sender(_) => Error::new(400, "the bytes ended early"),
            area::Error::System(e) => match e.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => {
                    Error::new(403, "the file system refuses it to you")
                }
                Some(libc::ENOSPC | libc::EDQUOT) => {
                    Error::new(507, "the file system is full, or your quota there")
                }
                _ => Error::new(500, format!("the file system failed: {e}")),
            },
        }
    }
}

pub type Done<T> = std::result::Result<T, Error>;

/// The body of the request that makes a workflow.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewWorkflow {
    pub name: String,
    #[serde(default = "local")]
    pub executor: Executor,
    #[serde(default)]
    pub approve: Vec<String>,
    pub campaign: Option<NewCampaign>,
}

fn local() -> Executor {
    Executor::Local
}

/// The campaign of a new workflow: an existing one, or, if there is a `spec`, one to be made.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewCampaign {
    pub name: Option<String>,
    pub spec: Option<String>,
}

/// Identifies a run: owner, workflow, number.
pub type Which = (String, String, u32);
/// Data about users or campaigns, each with the time when it was read.
type Known<K, V> = HashMap<K, (V, Instant)>;
/// Campaigns in the interface's format, by owner and name. None: the campaign can't be shown.
type Shown = Known<(String, String), Option<Value>>;

pub struct Service {
    pub state: PathBuf,
    pub config: Config,
    own: Account,
    records: Mutex<Records>,
    /// Owners and names of the workflows that this service is making now.
    making: Mutex<HashSet<(String, String)>>,
    accounts: Mutex<Known<String, Account>>,
    usage: Mutex<Shown>,
    tell: fn(&str),
    _lock: OwnedFd,
}

/// A workflow that this service is making, until this is dropped.
pub struct Making<'a> {
    service: &'a Service,
    key: (String, String),
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        lock(&self.service.making).remove(&self.key);
    }
}

impl Service {
    /// Opens a service's state directory, which is made if it doesn't exist.
    ///
    /// # Errors
    /// Another service uses the directory; the directory can't be read or made.
    pub fn open(state: &Path, config: Config, tell: fn(&str)) -> Result<Service> {
        // If the service is root, users must be able to reach their areas below the state
        // directory.
        let seen = if account::is_root() { 0o711 } else { 0o700 };
        disk::make_dir(state, seen)?;
        let state =
            std::fs::canonicalize(state).map_err(|e| format!("{}: {e}", state.display()))?;
        let lock = disk::lock(&state.join("lock"))?;
        disk::make_dir(&state.join("tokens"), 0o700)?;
        disk::make_dir(&state.join("areas"), seen)?;
        let plugin = state.join("plugin");
        let package = plugin.join("snakemake_logger_plugin_forebay");
        disk::make_dir(&plugin, 0o755)?;
        disk::make_dir(&package, 0o755)?;
        disk::replace(&package.join("__init__.py"), PLUGIN.as_bytes(), 0o644)?;
        Ok(Service {
            records: Mutex::new(Records::open(&state, &tell)?),
            own: account::own()?,
            state,
            config,
            making: Mutex::default(),
            accounts: Mutex::default(),
            usage: Mutex::default(),
            tell,
            _lock: lock,
        })
    }

    pub fn tell(&self, what: &str) {
        (self.tell)(what);
    }

    pub fn records(&self) -> MutexGuard<'_, Records> {
        lock(&self.records)
    }

    /// Returns the account of a user, if this service serves that user.
    ///
    /// # Errors
    /// 403: the user doesn't exist, or isn't served.
    pub fn account(&self, user: &str) -> Done<Account> {
        if !account::is_root() {
            return if user == self.own.name {
                Ok(self.own.clone())
            } else {
                Err(Error::new(
                    403,
                    format!("this service serves '{}' only", self.own.name),
                ))
            };
        }
        let mut known = lock(&self.accounts);
        if let Some((account, since)) = known.get(user)
            && since.elapsed() < FRESH
        {
            return Ok(account.clone());
        }
        let account = account::lookup(user).map_err(|why| Error::new(403, why))?;
        if account.uid == 0 && !self.config.root {
            return Err(Error::new(
                403,
                "this service doesn't run workflows as root: use a token of another user (forebay flow \
                 token --user NAME), or write root = true into the service's file (forebay flow serve \
                 --config FILE)",
            ));
        }
        known.insert(user.to_owned(), (account.clone(), Instant::now()));
        Ok(account)
    }

    fn area_path(&self, owner: &str, name: &str) -> PathBuf {
        self.state.join("areas").join(owner).join(name)
    }

    /// Returns the directory in which a workflow's jobs run.
    pub fn work(&self, w: &Workflow) -> PathBuf {
        match &w.campaign {
            Some(campaign) => campaign.place.clone().into(),
            None => self.area_path(&w.owner, &w.name).join("work"),
        }
    }

    pub fn places(&self, w: &Workflow, number: u32) -> Places {
        Places {
            run: launch::run_dir(&self.area_path(&w.owner, &w.name), number),
            work: self.work(w),
            plugin: self.state.join("plugin"),
        }
    }

    /// Returns a workflow of this owner.
    ///
    /// # Errors
    /// 404: the workflow doesn't exist.
    pub fn workflow(&self, owner: &str, name: &str) -> Done<Workflow> {
        let records = self.records();
        records.get(owner, name).cloned().ok_or_else(Error::absent)
    }

    fn ready(&self, owner: &str, name: &str) -> Done<Workflow> {
        let w = self.workflow(owner, name)?;
        match w.state {
            Stage::Ready => Ok(w),
            Stage::Making => Err(Error::new(409, "this workflow is being made")),
            Stage::Deleting => Err(Error::new(409, "this workflow is being deleted")),
        }
    }

    fn change<T>(&self, w: &Workflow, change: impl FnOnce(&mut Workflow) -> T) -> Done<T> {
        let changed = self.records().change(&w.owner, &w.name, change)?;
        changed.ok_or_else(Error::absent)
    }

    /// Records that this service is making a workflow, whose record is to be added.
    pub fn begin_making(&self, owner: &str, name: &str) -> Making<'_> {
        let key = (owner.to_owned(), name.to_owned());
        lock(&self.making).insert(key.clone());
        Making { service: self, key }
    }

    /// Whether this service is making a workflow. The caller holds the lock on the records, in
    /// which `w` is in state Making.
    pub fn is_making(&self, w: &Workflow) -> bool {
        lock(&self.making).contains(&(w.owner.clone(), w.name.clone()))
    }

    /// Makes a workflow with its directory and campaign.
    ///
    /// # Errors
    /// 400: the name is invalid. 409: the name exists, or the campaign isn't available. 507: the
    /// user has too many workflows.
    pub fn create(&self, owner: &str, new: NewWorkflow) -> Done<Workflow> {
        let bad = |why| Error::new(400, why);
        check_name(&new.name).map_err(bad)?;
        if new.approve.len() > MAX_VALUES {
            return Err(bad(format!("{MAX_VALUES} rules can need approvals")));
        }
        for rule in &new.approve {
            check_identifier(rule).map_err(bad)?;
        }
        let account = self.account(owner)?;
        let campaign = match &new.campaign {
            None => None,
            Some(c) => {
                let name = c.name.as_ref().unwrap_or(&new.name);
                check_name(name).map_err(bad)?;
                if let Some(spec) = &c.spec {
                    check_word(spec).map_err(bad)?;
                }
                Some(OfCampaign {
                    name: name.clone(),
                    place: String::new(),
                    is_own: c.spec.is_some(),
                })
            }
        };
        let workflow = Workflow {
            format: FORMAT,
            name: new.name.clone(),
            owner: owner.to_owned(),
            created: now(),
            state: Stage::Making,
            executor: new.executor,
            approve: new.approve,
            campaign,
            uploads: BTreeMap::new(),
            runs: Vec::new(),
        };
        // Until the record has another state, or is removed, the engine leaves the workflow alone.
        let _making = {
            let mut records = self.records();
            if records.get(owner, &new.name).is_some() {
                return Err(Error::new(
                    409,
                    format!("you have a workflow '{}' already", new.name),
                ));
            }
            if records.of(owner).count() >= self.config.limits.workflows {
                let most = self.config.limits.workflows;
                return Err(Error::new(
                    507,
                    format!("you have {most} workflows, and no more are allowed: delete some"),
                ));
            }
            let making = self.begin_making(owner, &new.name);
            records.add(workflow.clone())?;
            making
        };
        let spec = new.campaign.and_then(|c| c.spec);
        let made = self.make(&account, &workflow, spec.as_deref());
        match made {
            Ok(place) => {
                self.change(&workflow, |w| {
                    w.state = Stage::Ready;
                    if let (Some(c), Some(place)) = (&mut w.campaign, place) {
                        c.place = place;
                    }
                })?;
                self.workflow(owner, &new.name)
            }
            Err(refusal) => {
                // Leaves the campaign alone: if making it failed, an existing campaign with its
                // name isn't this workflow's.
                self.unmake(&account, &workflow, false)?;
                Err(refusal)
            }
        }
    }

    /// Makes the workflow's directory and campaign. Returns the campaign's place.
    fn make(&self, account: &Account, w: &Workflow, spec: Option<&str>) -> Done<Option<String>> {
        let areas = self.state.join("areas").join(&account.name);
        disk::make_dir(&areas, 0o700)?;
        if account::is_root() {
            std::os::unix::fs::chown(&areas, Some(account.uid), Some(account.gid))
                .map_err(|e| format!("{}: {e}", areas.display()))?;
        }
        {
            let _acting = account.act()?;
            let area = self.area_path(&w.owner, &w.name);
            for dir in [&area, &area.join("work"), &area.join("runs")] {
                disk::make_dir(dir, 0o700)?;
            }
        }
        let Some(campaign) = &w.campaign else {
            return Ok(None);
        };
        let failed = |why| Error::new(409, format!("campaign '{}': {why}", campaign.name));
        let words = match spec {
            Some(spec) => vec!["campaign", "create", "--", &campaign.name, spec],
            None => vec!["campaign", "path", "--", &campaign.name],
        };
        let place = launch::forebay(account, &self.config, &words).map_err(failed)?;
        let place = place.trim().to_owned();
        if place.starts_with('/') {
            Ok(Some(place))
        } else {
            if spec.is_some() {
                let words = ["campaign", "delete", "--now", "--", &campaign.name];
                launch::forebay(account, &self.config, &words).map_err(failed)?;
            }
            Err(failed(format!(
                "it lies at {place}, where programs can't work: choose a tier with a directory"
            )))
        }
    }

    /// Removes a workflow with its files and its record. `with_campaign`: also the campaign, if it
    /// was made for the workflow.
    ///
    /// # Errors
    /// Something can't be removed. The record stays.
    pub fn unmake(&self, account: &Account, w: &Workflow, with_campaign: bool) -> Result<()> {
        if let Some(campaign) = &w.campaign
            && campaign.is_own
            && with_campaign
        {
            self.release(account, w, &campaign.name)?;
        }
        {
            let _acting = account.act()?;
            let area = self.area_path(&w.owner, &w.name);
            match std::fs::remove_dir_all(&area) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(format!("{}: {e}", area.display()));
                }
                _ => {}
            }
        }
        self.records().forget(&w.owner, &w.name)
    }

    /// Removes the campaign that was made for a workflow.
    fn release(&self, account: &Account, w: &Workflow, name: &str) -> Result<()> {
        let shown = launch::forebay(
            account,
            &self.config,
            &["campaign", "show", "--json", "--", name],
        );
        let shown: Value = match shown {
            Ok(text) => serde_json::from_str(&text).map_err(|e| format!("campaign show: {e}"))?,
            Err(why) if why.contains("there is no campaign") => return Ok(()),
            Err(why) => return Err(why),
        };
        // A campaign that is older than the workflow wasn't made for it.
        if shown["created"].as_u64().unwrap_or(0) < w.created {
            return Ok(());
        }
        let words = ["campaign", "delete", "--now", "--", name];
        launch::forebay(account, &self.config, &words).map(|_| ())
    }

    /// Marks a workflow as to be deleted by the engine.
    ///
    /// # Errors
    /// 404: the workflow doesn't exist. 409: a run isn't over.
    pub fn delete(&self, owner: &str, name: &str) -> Done<()> {
        let w = self.workflow(owner, name)?;
        self.change(&w, |w| match (w.state, w.is_active()) {
            (_, true) => Err(Error::new(409, "a run isn't over: cancel it first")),
            (Stage::Making, _) => Err(Error::new(409, "this workflow is being made")),
            _ => {
                w.state = Stage::Deleting;
                Ok(())
            }
        })?
    }

    /// Receives a file of `size` bytes.
    ///
    /// # Errors
    /// 400: a bad path, or bytes are missing. 413, 507: too much. 409: the path is a directory.
    pub fn upload(
        &self,
        owner: &str,
        name: &str,
        path: &str,
        from: &mut dyn Read,
        size: u64,
    ) -> Done<()> {
        let w = self.ready(owner, name)?;
        self.may_upload(&w, path, size)?;
        let account = self.account(owner)?;
        let limits = self.config.limits;
        // The size is recorded before the bytes arrive, so that concurrent uploads don't exceed the
        // limit.
        let before = {
            let mut records = self.records();
            let used: u64 = records.of(owner).flat_map(|w| w.uploads.values()).sum();
            let changed = records.change(owner, name, |w| {
                let old = w.uploads.get(path).copied();
                if used - old.unwrap_or(0) + size > limits.uploads {
                    return Err(Error::new(
                        507,
                        format!(
                            "your uploads have {used} bytes, and {} are allowed: delete some",
                            limits.uploads
                        ),
                    ));
                }
                if old.is_none() && w.uploads.len() >= limits.files {
                    return Err(Error::new(
                        507,
                        format!("a workflow has {} uploaded files at most", limits.files),
                    ));
                }
                w.uploads
                    .insert(path.to_owned(), size.max(old.unwrap_or(0)));
                Ok(old)
            })?;
            changed.ok_or_else(Error::absent)??
        };
        let mut put = || -> Done<()> {
            let _acting = account.act()?;
            Ok(Area::open(&self.work(&w))?.put(path, from, size)?)
        };
        let done = put();
        self.change(&w, |w| match (&done, before) {
            (Ok(()), _) => w.uploads.insert(path.to_owned(), size),
            (Err(_), Some(old)) => w.uploads.insert(path.to_owned(), old),
            (Err(_), None) => w.uploads.remove(path),
        })?;
        done
    }

    /// Checks, before an upload's bytes arrive, that it wouldn't be refused.
    ///
    /// # Errors
    /// The errors of [`Service::upload`].
    pub fn may_upload(&self, w: &Workflow, path: &str, size: u64) -> Done<()> {
        path_parts(path).map_err(|why| Error::new(400, why))?;
        let most = self.config.limits.upload;
        if size > most {
            return Err(Error::new(
                413,
                format!("a file of {size} bytes is too large: {most} are allowed"),
            ));
        }
        if path == "Snakefile" && w.is_active() {
            return Err(Error::new(
                409,
                "a run isn't over: its Snakefile can't be changed",
            ));
        }
        Ok(())
    }

    /// Calls a function with the directory of a workflow. The thread acts as the workflow's owner.
    ///
    /// # Errors
    /// Errors of the function. 409: the workflow has no directory now.
    pub fn with_area<T>(
        &self,
        owner: &str,
        name: &str,
        f: impl FnOnce(&Area) -> std::result::Result<T, area::Error>,
    ) -> Done<T> {
        let w = self.ready(owner, name)?;
        let account = self.account(owner)?;
        let _acting = account.act()?;
        let area = Area::open(&self.work(&w)).map_err(|_| {
            Error::new(
                409,
                "the workflow's directory isn't there: has its campaign ended?",
            )
        })?;
        Ok(f(&area)?)
    }

    /// Removes a file of a workflow.
    ///
    /// # Errors
    /// 404: no such file. 409: the path isn't a file.
    pub fn remove_file(&self, owner: &str, name: &str, path: &str) -> Done<()> {
        self.with_area(owner, name, |area| area.remove(path))?;
        let w = self.workflow(owner, name)?;
        self.change(&w, |w| {
            w.uploads.remove(path);
        })
    }

    /// Starts a run, unless a request with the same key has started one. Returns the run, and
    /// whether it is new.
    ///
    /// # Errors
    /// 400, 404. 409: there is no Snakefile, or a run isn't over. 429: too many runs.
    pub fn start(
        &self,
        owner: &str,
        name: &str,
        parameters: Parameters,
        key: Option<String>,
    ) -> Done<(Run, bool)> {
        check(&parameters).map_err(|why| Error::new(400, why))?;
        if key.as_ref().is_some_and(|key| {
            !(1..=MAX_REQUEST_KEY_BYTES).contains(&key.len())
                || !key.bytes().all(|b| b.is_ascii_graphic())
        }) {
            return Err(Error::new(
                400,
                format!("Idempotency-Key has 1 to {MAX_REQUEST_KEY_BYTES} visible characters"),
            ));
        }
        let account = self.account(owner)?;
        let w = self.ready(owner, name)?;
        let known = |w: &Workflow| {
            let same = |r: &&Run| key.is_some() && r.key == key;
            w.runs.iter().find(same).cloned()
        };
        if let Some(run) = known(&w) {
            return Ok((run, false));
        }
        self.find_campaign(&account, &w)?;
        let snakefile = self.with_area(owner, name, |area| area.get("Snakefile"));
        match snakefile {
            Ok(_) => {}
            Err(refusal) if refusal.status == 404 => {
                return Err(Error::new(409, "upload a Snakefile first"));
            }
            Err(refusal) => return Err(refusal),
        }
        let id = token::hex(&token::random::<8>()?);
        let limits = self.config.limits;
        let mut records = self.records();
        let active = |w: &Workflow| w.runs.iter().filter(|r| !r.state.is_over()).count();
        let (mine, all): (usize, usize) = (
            records.of(owner).map(active).sum(),
            records.all().map(active).sum(),
        );
        let changed = records.change(owner, name, |w| {
            if let Some(run) = known(w) {
                return Ok((run, false));
            }
            if w.state != Stage::Ready {
                return Err(Error::new(409, "this workflow is being deleted"));
            }
            if w.is_active() {
                return Err(Error::new(409, "a run of this workflow isn't over"));
            }
            if mine >= limits.runs {
                return Err(Error::new(
                    429,
                    format!(
                        "you have {mine} runs that aren't over; {} are allowed",
                        limits.runs
                    ),
                ));
            }
            if all >= limits.all_runs {
                return Err(Error::new(
                    429,
                    format!("the service has {all} runs; try again later"),
                ));
            }
            if w.runs.len() >= MAX_RUNS {
                return Err(Error::new(
                    507,
                    format!("a workflow keeps {MAX_RUNS} runs: make another one"),
                ));
            }
            let run = Run {
                number: w.runs.iter().map(|r| r.number).max().unwrap_or(0) + 1,
                id,
                state: State::Queued,
                begun: now(),
                ended: None,
                key: key.clone(),
                parameters,
                approvals: Vec::new(),
                omitted: Vec::new(),
                attempt: 0,
                lost: 0,
                attempted: 0,
                cancelled: None,
                exit: None,
                message: "to be started".into(),
            };
            w.runs.push(run.clone());
            Ok((run, true))
        })?;
        changed.ok_or_else(Error::absent)?
    }

    /// Records the current place of a workflow's campaign. The campaign may have been moved to
    /// another tier.
    fn find_campaign(&self, account: &Account, w: &Workflow) -> Done<()> {
        let Some(campaign) = &w.campaign else {
            return Ok(());
        };
        let words = ["campaign", "path", "--", &campaign.name];
        let place = launch::forebay(account, &self.config, &words);
        let place = place.map_err(|why| Error::new(409, why))?;
        let place = place.trim();
        if !place.starts_with('/') {
            let why = format!("the campaign lies at {place}, where programs can't work");
            return Err(Error::new(409, why));
        }
        self.change(w, |w| {
            if let Some(campaign) = &mut w.campaign {
                place.clone_into(&mut campaign.place);
            }
        })
    }

    fn with_run<T>(
        &self,
        owner: &str,
        name: &str,
        number: u32,
        change: impl FnOnce(&Workflow, &mut Run) -> Done<T>,
    ) -> Done<T> {
        let changed = self.records().change(owner, name, |w| {
            let before = w.clone();
            match w.run_mut(number) {
                Some(run) => change(&before, run),
                None => Err(Error::new(404, "there is no such run")),
            }
        })?;
        changed.ok_or_else(Error::absent)?
    }

    /// Approves a rule, so that the run may begin the rule's jobs. Repeating the request has no
    /// further effect.
    ///
    /// # Errors
    /// 404. 409: the run has ended, or the rule needs no approval.
    pub fn approve(&self, owner: &str, name: &str, number: u32, rule: &str) -> Done<()> {
        self.with_run(owner, name, number, |w, run| {
            if run.approvals.iter().any(|a| a.rule == rule) {
                return Ok(());
            }
            if run.state.is_over() {
                return Err(Error::new(409, "the run is over"));
            }
            if !w.approve.iter().any(|r| r == rule) {
                return Err(Error::new(409, "this rule needs no approval"));
            }
            run.approvals.push(Approval {
                rule: rule.to_owned(),
                by: owner.to_owned(),
                at: now(),
            });
            if run.state == State::Waiting {
                run.state = State::Queued;
                run.message = format!("'{rule}' was approved");
            }
            Ok(())
        })
    }

    /// Asks a run to end. Repeating the request has no further effect.
    ///
    /// # Errors
    /// 404. 409: the run has ended.
    pub fn cancel(&self, owner: &str, name: &str, number: u32) -> Done<()> {
        self.with_run(owner, name, number, |_, run| match run.state {
            State::Cancelled => Ok(()),
            state if state.is_over() => Err(Error::new(409, "the run is over")),
            State::Running => {
                run.cancelled.get_or_insert(now());
                run.message = "being cancelled".into();
                Ok(())
            }
            _ => {
                run.end(State::Cancelled, "on request");
                Ok(())
            }
        })
    }

    /// Returns a workflow's campaign in the interface's format: place, quota, usage, end. None: the
    /// workflow has none.
    pub fn campaign(&self, w: &Workflow) -> Option<Value> {
        let campaign = w.campaign.as_ref()?;
        let key = (w.owner.clone(), campaign.name.clone());
        if let Some((value, since)) = lock(&self.usage).get(&key)
            && since.elapsed() < FRESH
        {
            return value.clone();
        }
        let shown = self.count(w, false);
        lock(&self.usage).insert(key, (shown.clone(), Instant::now()));
        shown
    }

    /// Returns a workflow's campaign in the interface's format. If `is_new`, its usage is counted
    /// again.
    pub fn count(&self, w: &Workflow, is_new: bool) -> Option<Value> {
        let campaign = w.campaign.as_ref()?;
        let account = self.account(&w.owner).ok()?;
        let mut words = vec!["campaign", "show", "--json"];
        if is_new {
            words.push("--count");
        }
        words.extend(["--", campaign.name.as_str()]);
        let value = match launch::forebay(&account, &self.config, &words) {
            Ok(text) => {
                let c: Value = serde_json::from_str(&text).ok()?;
                json!({
                    "name": c["name"], "place": c["place"], "tier": c["tier"], "state": c["state"],
                    "ends": c["ends"], "bytes": c["bytes"], "files": c["files"], "usage": c["usage"],
                    "is_own": campaign.is_own,
                })
            }
            Err(why) => json!({
                "name": campaign.name, "place": campaign.place, "is_own": campaign.is_own,
                "error": why,
            }),
        };
        if is_new {
            let key = (w.owner.clone(), campaign.name.clone());
            lock(&self.usage).insert(key, (Some(value.clone()), Instant::now()));
        }
        Some(value)
    }

    /// Reads a file of a run's directory, as the run's user, from an offset, up to `most` bytes.
    /// Also returns the file's size. A missing file counts as empty.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn run_file(
        &self,
        w: &Workflow,
        number: u32,
        name: &str,
        from: u64,
        most: u64,
    ) -> Done<(Vec<u8>, u64)> {
        let account = self.account(&w.owner)?;
        let _acting = account.act()?;
        let area = match Area::open(&self.places(w, number).run) {
            Err(area::Error::Absent) => return Ok((Vec::new(), 0)),
            other => other?,
        };
        let (mut file, size) = match area.get(name) {
            Err(area::Error::Absent) => return Ok((Vec::new(), 0)),
            other => other?,
        };
        let mut bytes = Vec::new();
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(from))
            .and_then(|_| file.take(most).read_to_end(&mut bytes))
            .map_err(area::Error::System)?;
        Ok((bytes, size))
    }
}

/// Checks the parameters that become arguments of Snakemake.
fn check(p: &Parameters) -> Result<()> {
    if p.resources.len() > MAX_VALUES || p.config.len() > MAX_VALUES {
        return Err(format!(
            "there are {MAX_VALUES} resources and values at most"
        ));
    }
    if p.targets.len() > MAX_VALUES {
        return Err(format!("there are {MAX_VALUES} targets at most"));
    }
    for (name, value) in p.resources.iter().chain(&p.config) {
        check_identifier(name)?;
        check_word(value)?;
    }
    for target in &p.targets {
        check_word(target)?;
    }
    match p.jobs {
        Some(0) => Err("jobs: at least 1".into()),
        Some(n) if n > 100_000 => Err("jobs: 100000 at most".into()),
        _ => Ok(()),
    }
}
