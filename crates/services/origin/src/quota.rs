//! The quota of a pool's origin. Each node gets a grant; the grants together never exceed the
//! quota.
//!
//! Two amounts count against the limits: the content of the origin when the pool started (`base`),
//! and the usage of all nodes (`used`), which includes changes that aren't written back yet. If an
//! operation would exceed its node's grant, the node sends a request and waits. The service takes
//! back all unused grants, gives that node the amount it needs, and shares out the rest. EDQUOT is
//! returned only if the quota's total rest is too small.
//!
//! A node that can't be reached keeps its grant. Changes by others at the origin are never refused,
//! but added to `base` when the pool notices them.

use forebay_client::origin::{Quota as Limits, QuotaStatus};
use forebay_posix::Fs;
use forebay_runtime::threads::lock;
use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use forebay_store::quota::Amount;
use rustix::io::{Errno, Result};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::Error;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Name of the file in which limits and usage outlive the service.
const NAME: &str = "quota.json";
/// Time for which an unreachable node gets no further request, since other nodes wait during each.
const UNREACHABLE_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Amount that stands for no limit. Small enough for sums that don't overflow.
const ENDLESS: i64 = i64::MAX / 4;
/// A grant that allows nothing. Usage can be negative, when a node has removed files that existed
/// before the pool; so a grant of 0 could allow something.
const NOTHING: Amount = (-ENDLESS, -ENDLESS);

/// Content of the quota's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    bytes: Option<u64>,
    files: Option<u64>,
    /// Usage at the origin when the pool started, adjusted by others' changes since then.
    base: Amount,
    /// Usage of all nodes when the file was written.
    used: Amount,
}

#[derive(Default)]
struct State {
    kept: Kept,
    /// Last known usage and grant of each node.
    nodes: HashMap<u32, (Amount, Amount)>,
    /// Nodes that couldn't be reached, and the times of the attempts.
    unreachable: HashMap<u32, Instant>,
    /// The content of the file as last written. None: not yet written by this service.
    noted: Option<Kept>,
}

/// The quota of the origin. `state` is None in a pool without a quota.
pub struct Quota {
    file: PathBuf,
    state: Mutex<Option<State>>,
}

fn plus(a: Amount, b: Amount) -> Amount {
    (a.0.saturating_add(b.0), a.1.saturating_add(b.1))
}

fn minus(a: Amount, b: Amount) -> Amount {
    (a.0.saturating_sub(b.0), a.1.saturating_sub(b.1))
}

fn amount(bytes: u64, files: u64) -> Amount {
    let signed = |n: u64| i64::try_from(n).unwrap_or(ENDLESS).min(ENDLESS);
    (signed(bytes), signed(files))
}

impl Kept {
    /// Returns the amount that all nodes together may use.
    fn budget(&self) -> Amount {
        let limit = |most: Option<u64>| most.unwrap_or(u64::MAX);
        minus(amount(limit(self.bytes), limit(self.files)), self.base)
    }
}

/// Divides `free` among `n` nodes. Node `first` gets `wanted` before the rest is divided evenly. No
/// share is negative.
fn shares(free: i64, n: usize, first: usize, wanted: i64) -> Vec<i64> {
    let wanted = wanted.clamp(0, free.max(0));
    let rest = (free - wanted).max(0);
    let (each, over) = (rest / n as i64, rest % n as i64);
    let mut all = vec![each; n];
    if let Some(one) = all.get_mut(first) {
        *one += wanted + over;
    }
    assert!(
        all.iter().sum::<i64>() <= free.max(0),
        "shares don't exceed what is free"
    );
    all
}

impl Quota {
    /// Reads the state that an earlier service has left in `dir`. `limits`: the limits with which
    /// the pool was started. `is_new`: this node's usage counter has started from zero.
    ///
    /// # Errors
    /// The file exists but can't be read.
    pub fn load(dir: &Path, limits: Option<&Limits>, is_new: bool) -> std::io::Result<Quota> {
        let file = dir.join(NAME);
        let Some(limits) = limits else {
            let state = Mutex::new(None);
            return Ok(Quota { file, state });
        };
        let kept = match untrusted::read(&file, Links::Refuse, MAX_SETTINGS) {
            Ok(bytes) => {
                let mut kept: Kept = serde_json::from_slice(&bytes).map_err(Error::other)?;
                if is_new {
                    kept.base = plus(kept.base, std::mem::take(&mut kept.used));
                }
                kept
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Kept {
                bytes: limits.bytes,
                files: limits.files,
                base: amount(limits.used_bytes, limits.used_files),
                used: (0, 0),
            },
            Err(e) => return Err(e),
        };
        let state = State {
            kept,
            ..State::default()
        };
        let quota = Quota {
            file,
            state: Mutex::new(Some(state)),
        };
        quota.save(&kept)?;
        Ok(quota)
    }

    fn save(&self, kept: &Kept) -> std::io::Result<()> {
        let part = self.file.with_extension("part");
        std::fs::write(&part, serde_json::to_vec(kept)?)?;
        std::fs::rename(&part, &self.file)
    }

    /// Adds to `base` a change of the origin's usage that the nodes' stores don't count.
    pub fn others(&self, bytes: i64, files: i64) {
        if let Some(state) = lock(&self.state).as_mut() {
            state.kept.base = plus(state.kept.base, (bytes, files));
        }
    }

    pub fn is_there(&self) -> bool {
        lock(&self.state).is_some()
    }

    /// Makes sure that a node may use this many more bytes and files. `fs`: access to all nodes.
    ///
    /// # Errors
    /// EDQUOT: the quota's rest is smaller.
    pub fn grant(&self, fs: &Fs, node: u32, (bytes, files): (u64, u64)) -> Result<()> {
        let mut state = lock(&self.state);
        let Some(state) = state.as_mut() else {
            return Err(Errno::DQUOT);
        };
        let wanted = amount(bytes, files);
        // The node has just sent a request, so it can be reached.
        state.unreachable.remove(&node);
        let (_, granted) = state.nodes.get(&node).copied().unwrap_or_default();
        // An earlier request of that node may have raised its grant already.
        let used = state.exchange(fs, node, None)?;
        let left = minus(granted, used);
        if left.0 >= wanted.0 && left.1 >= wanted.1 {
            Ok(())
        } else {
            state.share_out(fs, node, wanted)
        }
    }

    /// Sets new limits.
    ///
    /// # Errors
    /// EOPNOTSUPP: the pool has no quota. Errors of writing the file.
    pub fn set(&self, fs: &Fs, bytes: Option<u64>, files: Option<u64>) -> Result<()> {
        let mut state = lock(&self.state);
        let state = state.as_mut().ok_or(Errno::OPNOTSUPP)?;
        let kept = Kept {
            bytes,
            files,
            ..state.kept
        };
        let saved = self.save(&kept);
        saved.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        state.kept = kept;
        // The new quota may be smaller than the usage: nodes that need more get EDQUOT.
        state.share_out(fs, 0, (0, 0))
    }

    /// Returns limits and usage; None in a pool without a quota.
    pub fn status(&self, fs: &Fs) -> Option<QuotaStatus> {
        self.look(fs);
        let mut state = lock(&self.state);
        let state = state.as_mut()?;
        let used = plus(state.kept.base, state.kept.used);
        Some(QuotaStatus {
            bytes: state.kept.bytes,
            files: state.kept.files,
            used_bytes: used.0.max(0) as u64,
            used_files: used.1.max(0) as u64,
        })
    }

    /// Reads the usage of all nodes. A node may be slow to reply, so the lock isn't held while
    /// waiting.
    fn look(&self, fs: &Fs) {
        let is_unreachable = |node: u32| {
            lock(&self.state)
                .as_ref()
                .is_none_or(|s| s.is_unreachable(node))
        };
        for node in fs.cluster().room().quota_nodes() {
            if is_unreachable(node) {
                continue;
            }
            let used = fs.cluster().room().exchange_quota(node, None);
            if let Some(state) = lock(&self.state).as_mut() {
                // If a node can't be reached, its last known usage is used.
                state.learn(node, used);
            }
        }
        if let Some(state) = lock(&self.state).as_mut() {
            state.kept.used = state.used();
        }
    }

    /// Writes the current usage to the file, for the next service.
    pub fn note(&self, fs: &Fs) {
        self.look(fs);
        let mut state = lock(&self.state);
        if let Some(state) = state.as_mut() {
            // After a failure, the next call tries again.
            if state.noted != Some(state.kept) && self.save(&state.kept).is_ok() {
                state.noted = Some(state.kept);
            }
        }
    }
}

impl State {
    fn used(&self) -> Amount {
        self.nodes
            .values()
            .fold((0, 0), |all, (used, _)| plus(all, *used))
    }

    /// Sets a node's grant, if `granted` is given. Returns the node's usage, and records it.
    fn exchange(&mut self, fs: &Fs, node: u32, granted: Option<Amount>) -> Result<Amount> {
        if self.is_unreachable(node) {
            return Err(Errno::HOSTDOWN);
        }
        let known = self.nodes.entry(node).or_default();
        if let Some(granted) = granted {
            // If the reply is lost, the node may have the old or the new grant: the larger one is
            // assumed.
            known.1 = (known.1.0.max(granted.0), known.1.1.max(granted.1));
        }
        let used = fs.cluster().room().exchange_quota(node, granted);
        self.learn(node, used);
        if let (Ok(_), Some(granted), Some(known)) = (used, granted, self.nodes.get_mut(&node)) {
            known.1 = granted;
        }
        used
    }

    /// Records a node's reported usage.
    fn learn(&mut self, node: u32, used: Result<Amount>) {
        match used {
            Ok(used) => {
                self.nodes.entry(node).or_default().0 = used;
                self.unreachable.remove(&node);
            }
            Err(_) => {
                self.unreachable.insert(node, Instant::now());
            }
        }
    }

    fn is_unreachable(&self, node: u32) -> bool {
        let since = self.unreachable.get(&node);
        since.is_some_and(|since| since.elapsed() < UNREACHABLE_RETRY_INTERVAL)
    }

    /// Takes back all grants and divides the rest of the quota. Node `needs` gets `wanted` first.
    fn share_out(&mut self, fs: &Fs, needs: u32, wanted: Amount) -> Result<()> {
        let (mut reached, mut left) = (Vec::new(), self.kept.budget());
        for node in fs.cluster().room().quota_nodes() {
            // The node may use less than was last known. NOTHING keeps it from using the difference
            // before it gets its share: meanwhile its operations send requests and wait.
            match self.exchange(fs, node, Some(NOTHING)) {
                Ok(used) => {
                    reached.push((node, used));
                    left = minus(left, used);
                }
                Err(_) => {
                    let (used, granted) = self.nodes.get(&node).copied().unwrap_or_default();
                    left = minus(left, (used.0.max(granted.0), used.1.max(granted.1)));
                }
            }
        }
        let first = reached.iter().position(|(node, _)| *node == needs);
        let first = first.unwrap_or(usize::MAX);
        let bytes = shares(left.0, reached.len().max(1), first, wanted.0);
        let files = shares(left.1, reached.len().max(1), first, wanted.1);
        for (i, (node, used)) in reached.into_iter().enumerate() {
            // If the node can't be reached now, its grant remains smaller than it could be.
            let _ = self.exchange(fs, node, Some(plus(used, (bytes[i], files[i]))));
        }
        let is_enough = |left: i64, wanted: i64| wanted <= 0 || wanted <= left;
        if is_enough(left.0, wanted.0) && is_enough(left.1, wanted.1) {
            Ok(())
        } else {
            Err(Errno::DQUOT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_what_is_left() {
        for free in [-5, 0, 1, 2, 3, 10, 1000] {
            for wanted in [0, 1, 5, 2000] {
                for first in [0, 2, usize::MAX] {
                    let all = shares(free, 3, first, wanted);
                    assert!(all.iter().all(|&share| share >= 0));
                    assert!(all.iter().sum::<i64>() <= free.max(0));
                    if first < 3 && wanted <= free {
                        assert!(all[first] >= wanted, "{free} {wanted} {all:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn usage_outlives_a_loss_of_power() {
        let dir = std::env::temp_dir().join(format!("fb-quota-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let limits = Limits {
            bytes: Some(100),
            files: None,
            used_bytes: 30,
            used_files: 3,
        };
        let budget = |quota: &Quota| lock(&quota.state).as_ref().map(|s| s.kept.budget());
        let first = Quota::load(&dir, Some(&limits), true).unwrap();
        assert_eq!(budget(&first), Some((70, ENDLESS - 3)));
        first.others(5, 1);
        let kept = lock(&first.state).as_ref().map(|s| s.kept).unwrap();
        let used = (20, 2);
        first.save(&Kept { used, ..kept }).unwrap();
        // When a service replaces another one, the nodes still have their usage counters. After a
        // loss of power, the counters start from zero, so the recorded usage is added to `base`.
        let next = Quota::load(&dir, Some(&limits), false).unwrap();
        assert_eq!(budget(&next).map(|b| b.0), Some(65));
        let after = Quota::load(&dir, Some(&limits), true).unwrap();
        assert_eq!(budget(&after).map(|b| b.0), Some(45));
        std::fs::write(dir.join(NAME), b"[").unwrap();
        assert!(Quota::load(&dir, Some(&limits), false).is_err());
        assert!(Quota::load(&dir, None, false).is_ok_and(|q| !q.is_there()));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
