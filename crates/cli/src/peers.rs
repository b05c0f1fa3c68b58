//! Runs `forebay` on the other hosts of a pool.

use crate::fail::Fail;
use forebay_client::places;
use forebay_pool::launch::{How, Plan, remote};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::{Command, Stdio};

/// Returns the command that runs `forebay` with these arguments on a host of the pool.
pub fn at_host(plan: &Plan, host: &str, arguments: &[&str]) -> Command {
    let mut words: Vec<OsString> = Vec::new();
    if let Some(home) = &plan.home {
        let mut setting = OsString::from("FOREBAY_HOME=");
        setting.push(home);
        words.extend(["env".into(), setting]);
    }
    words.push(plan.executable.clone().into());
    words.extend(arguments.iter().map(OsString::from));
    remote(&plan.how, host, &words)
}

/// The other hosts of a pool.
pub struct Peers {
    plan: Plan,
    hosts: BTreeSet<String>,
}

impl Peers {
    /// Returns the other hosts of the pool `name`, which has a node here. None if all its nodes are
    /// here, or if the hosts can't be determined.
    pub fn of(name: &str) -> Option<Peers> {
        Peers::look(name).ok().flatten()
    }

    /// Like [`Peers::of`], but reports failures.
    ///
    /// # Errors
    /// If the hosts can't be determined, although the pool may have nodes on other hosts.
    pub fn look(name: &str) -> Result<Option<Peers>, Fail> {
        let places = places(name);
        let mut unread = None;
        let plan = places.iter().filter(|p| p.node.is_some()).find_map(|p| {
            let read = Plan::read(&p.dir);
            read.map_err(|e| unread = Some((p.dir.clone(), e))).ok()
        });
        match (plan, unread) {
            (Some(plan), _) => Ok(Peers::among(plan, &places)),
            (None, None) => Ok(None),
            (None, Some((dir, e))) => Err(Fail::failed(format!(
                "can't find out on which hosts the pool '{name}' is: {}: {e}",
                dir.join("plan.json").display()
            ))),
        }
    }

    fn among(plan: Plan, places: &[forebay_client::Place]) -> Option<Peers> {
        if plan.how == How::Local {
            return None;
        }
        let host = |p: &forebay_client::Place| plan.hosts.get(p.node? as usize);
        let here: BTreeSet<&String> = places.iter().filter_map(host).collect();
        let mut hosts: BTreeSet<String> = plan.hosts.iter().cloned().collect();
        hosts.retain(|h| !here.contains(h));
        (!hosts.is_empty()).then_some(Peers { plan, hosts })
    }

    /// Runs `forebay` with these arguments on the host of node `node`.
    pub fn at(&self, node: u32, arguments: &[&str]) -> Result<(), Fail> {
        match self.plan.hosts.get(node as usize) {
            Some(host) => self.call(host, arguments),
            None => Err(Fail::usage(format!(
                "the pool '{}' has no node {node}; it has nodes 0 to {}",
                self.plan.name,
                self.plan.hosts.len() - 1
            ))),
        }
    }

    /// Runs `forebay` with these arguments on all other hosts, several at a time. Runs it on all of
    /// them even if one fails, and returns the first failure.
    pub fn each(&self, arguments: &[&str]) -> Result<(), Fail> {
        let hosts: Vec<&String> = self.hosts.iter().collect();
        let mut failed = None;
        for some in hosts.chunks(32) {
            let results: Vec<Result<(), Fail>> = std::thread::scope(|s| {
                let calls: Vec<_> = some
                    .iter()
                    .map(|host| s.spawn(|| self.call(host, arguments)))
                    .collect();
                let end = |c: std::thread::ScopedJoinHandle<_>| {
                    c.join()
                        .unwrap_or_else(|_| Err(Fail::failed("a thread failed")))
                };
                calls.into_iter().map(end).collect()
            });
            failed = failed.or(results.into_iter().find_map(Result::err));
        }
        failed.map_or(Ok(()), Err)
    }

    /// Runs `forebay` with these arguments on all other hosts, several at a time. Returns each
    /// host's output, or the reason of its failure.
    pub fn outputs(&self, arguments: &[&str]) -> Vec<(String, Result<Vec<u8>, Fail>)> {
        let hosts: Vec<&String> = self.hosts.iter().collect();
        let mut all = Vec::new();
        for some in hosts.chunks(32) {
            std::thread::scope(|s| {
                let calls: Vec<_> = some
                    .iter()
                    .map(|host| (host, s.spawn(|| self.output(host, arguments))))
                    .collect();
                for (host, call) in calls {
                    let output = call
                        .join()
                        .unwrap_or_else(|_| Err(Fail::failed("a thread failed")));
                    all.push(((**host).clone(), output));
                }
            });
        }
        all
    }

    fn call(&self, host: &str, arguments: &[&str]) -> Result<(), Fail> {
        self.output(host, arguments).map(drop)
    }

    /// Returns the names of the hosts.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().map(String::as_str)
    }

    /// Runs `forebay` with these arguments on a host, and returns what it prints.
    ///
    /// # Errors
    /// If the host can't be reached, or the command fails there.
    pub fn output(&self, host: &str, arguments: &[&str]) -> Result<Vec<u8>, Fail> {
        let failed = |why: &str| Fail::failed(format!("{host}: {why}"));
        let output = at_host(&self.plan, host, arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| failed(&format!("can't be reached: {e}")))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rfind(|l| !l.trim().is_empty());
        let last = last.map(|l| l.strip_prefix("forebay: ").unwrap_or(l));
        Err(failed(last.unwrap_or("can't be reached")))
    }
}
